use proptest::prelude::*;

use super::*;

const DISK: u64 = 3 * BLOCK as u64 + 512;

#[derive(Clone, Debug)]
enum Op {
    Write(u64, u64, u8),
    Zero(u64, u64),
    Discard(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..DISK).prop_flat_map(|start| (Just(start), 0..=DISK - start));
    (range, any::<u8>(), 0..3).prop_map(|((start, len), byte, kind)| match kind {
        0 => Op::Write(start, len, byte),
        1 => Op::Zero(start, len),
        _ => Op::Discard(start, len),
    })
}

proptest! {
    #[test]
    fn model_agrees_with_a_flat_array(ops in prop::collection::vec(op(), 1..40)) {
        let mut flat = vec![0_u8; DISK as usize];
        let mut model = Model::new(DISK);
        for op in ops {
            let (start, len, byte) = match op {
                Op::Write(start, len, byte) => {
                    model.write(start, &vec![byte; len as usize]).unwrap();
                    (start, len, byte)
                }
                Op::Zero(start, len) => {
                    model.zero(start, len).unwrap();
                    (start, len, 0)
                }
                Op::Discard(start, len) => {
                    model.discard(start, len).unwrap();
                    (start, len, 0)
                }
            };
            flat[start as usize..(start + len) as usize].fill(byte);
        }
        let mut all = vec![0xff; DISK as usize];
        model.read(0, &mut all).unwrap();
        prop_assert_eq!(&all, &flat);
        prop_assert_eq!(model.check(0, &flat), Ok(()));
    }
}

#[test]
fn discarded_bytes_fit_anything_until_written() {
    let mut model = Model::with_rule(DISK, DiscardRule::Anything);
    model.write(100, &[7; 100]).unwrap();
    model.discard(150, 10).unwrap();
    let mut found = vec![7; 100];
    found[55] = 9;
    assert_eq!(model.check(100, &found), Ok(()));
    model.write(155, &[7]).unwrap();
    let difference = Difference { offset: 155, expected: 7, found: 9 };
    assert_eq!(model.check(100, &found), Err(difference));
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let mut model = Model::new(DISK);
    assert_eq!(model.write(DISK - 1, &[0; 2]), Err(OutOfRange));
    assert_eq!(model.read(u64::MAX, &mut [0; 2]), Err(OutOfRange));
    assert_eq!(model.zero(DISK, 1), Err(OutOfRange));
    assert_eq!(model.zero(DISK, 0), Ok(()));
}

#[test]
fn space_that_comes_back_after_a_shrink_reads_as_zeroes() {
    let mut model = Model::new(DISK);
    model.write(DISK - 10, &[5; 10]).unwrap();
    model.resize(DISK - 5);
    model.resize(DISK);
    let mut tail = [1; 10];
    model.read(DISK - 10, &mut tail).unwrap();
    assert_eq!(tail, [5, 5, 5, 5, 5, 0, 0, 0, 0, 0]);
}

#[test]
fn whole_blocks_of_zeroes_take_no_memory() {
    let mut model = Model::new(DISK);
    model.write(0, &[1; 2 * BLOCK]).unwrap();
    model.zero(0, 2 * BLOCK as u64).unwrap();
    assert!(model.blocks.is_empty());
}
