use super::interval::outside;
use super::*;

/// Two contenders at two points, three rounds; `measure` gets the number of the measurement.
fn measured(measure: impl Fn(f64) -> f64) -> Experiment {
    let mut experiment = Experiment::new("test", Host::default());
    let mut count = 0.0;
    let each = |(): &(), (): &()| {
        count += 1.0;
        Ok(vec![(IOPS, measure(count))])
    };
    let (points, contenders) = ([("read", ()), ("write", ())], [("ours", ()), ("theirs", ())]);
    experiment.run(3, &points, &contenders, each).unwrap();
    experiment
}

#[test]
fn another_contender_begins_each_round_at_each_point() {
    let mut order = Vec::new();
    let mut experiment = Experiment::new("test", Host::default());
    let each = |point: &char, contender: &u32| {
        order.push(format!("{point}{contender}"));
        Ok(Vec::new())
    };
    let contenders = [1, 2, 3].map(|it| (format!("number {it}"), it));
    experiment.run(2, &[("first", 'a'), ("second", 'b')], &contenders, each).unwrap();
    assert_eq!(order.join(" "), "a1 a2 a3 b1 b2 b3 a2 a3 a1 b2 b3 b1");
    assert_eq!(turns::<u8>(3, &[]).count(), 0);
}

#[test]
fn figures_are_kept_by_point_and_contender_and_ratios_are_those_of_a_round() {
    let experiment = measured(|count| count);
    assert_eq!(experiment.points(), ["read", "write"]);
    assert_eq!(experiment.contenders("read"), ["ours", "theirs"]);
    let at = |point, contender| experiment.at(point, contender);
    // Round 2 begins with "theirs".
    assert_eq!(at("read", "ours").all(IOPS), [1.0, 6.0, 9.0]);
    assert_eq!(at("read", "theirs").all(IOPS), [2.0, 5.0, 10.0]);
    let ratios = at("read", "ours").ratios(at("read", "theirs"), IOPS);
    assert_eq!(ratios, [0.5, 1.2, 0.9]);
    assert_eq!(at("write", "ours").median(IOPS), Some(8.0));
    assert_eq!(at("write", "nobody").median(IOPS), None);
}

#[test]
fn a_round_without_a_figure_has_no_ratio_and_shifts_no_other() {
    let experiment = measured(|count| if count == 5.0 { f64::NAN } else { count });
    let [ours, theirs] = ["ours", "theirs"].map(|it| experiment.at("read", it));
    assert_eq!(theirs.all(IOPS), [2.0, 10.0]);
    assert_eq!(ours.ratios(theirs, IOPS), [0.5, 0.9]);
    let idle = measured(|_| 0.0);
    assert!(idle.at("read", "ours").ratios(idle.at("read", "theirs"), IOPS).is_empty());
}

#[test]
fn a_failure_names_point_and_contender() {
    let mut experiment = Experiment::new("test", Host::default());
    let fails = |(): &(), (): &()| anyhow::bail!("broken");
    let failed = experiment.run(1, &[("read", ())], &[("ours", ())], fails).unwrap_err();
    assert_eq!(format!("{failed:#}"), "read, ours: broken");
}

/// From the table of the sign test.
#[test]
fn the_interval_leaves_out_as_many_as_the_sign_test_says() {
    for (count, cut) in [(6, 0), (9, 1), (12, 2), (15, 3), (20, 5), (25, 7)] {
        assert_eq!(outside(count), Some(cut), "{count}");
    }
    assert_eq!((outside(0), outside(5)), (None, None));
    let values = (1..=15).map(f64::from).rev().collect();
    assert_eq!(interval(values), "8.000 (4.000-12.000)");
    assert_eq!(spread((1..=6).map(|it| f64::from(it) * 1e3).collect()), "3,500 (1,000-6,000)");
}

#[test]
fn few_values_have_an_interval_of_lower_confidence() {
    assert_eq!(interval(vec![1.0, 3.0, 2.0]), "2.000 (1.000-3.000, 75 %)");
    assert_eq!(signed(vec![0.01, -0.02]), "-0.50 % (-2.00 % to +1.00 %, 50 %)");
    assert_eq!(interval(vec![1.5]), "1.500");
    assert_eq!(interval(vec![]), "-");
}

#[test]
fn the_median_is_the_middle_or_in_between() {
    assert_eq!(median(vec![30.0, 10.0, 20.0]), Some(20.0));
    assert_eq!(median(vec![10.0, 20.0]), Some(15.0));
    assert_eq!(median(vec![]), None);
}

#[test]
fn kept_figures_come_back_and_those_of_something_else_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept.json");
    let new = |of| Experiment::new(of, Host::default());
    assert_eq!(new("test").with_kept(&path).unwrap(), new("test"));
    let experiment = measured(|count| if count == 3.0 { f64::NAN } else { 1.5 });
    experiment.write(&path).unwrap();
    let mut again = new("test").with_kept(&path).unwrap();
    assert_eq!(again, experiment);
    again.add("read", "ours", &[(IOPS, 7.0)]);
    assert_eq!(again.at("read", "ours").all(IOPS), [1.5, 1.5, 1.5, 7.0]);
    let other = new("another").with_kept(&path).unwrap_err();
    assert!(other.to_string().contains("this run is of another"), "{other}");
    std::fs::write(&path, "{").unwrap();
    assert!(new("test").with_kept(&path).is_err());
}

#[test]
fn columns_of_numbers_are_aligned_to_the_right() {
    let experiment = measured(|count| count * 1000.0);
    let [ours, theirs] = ["ours", "theirs"].map(|it| experiment.at("read", it));
    let row = vec![
        "read".to_owned(),
        ours.count(IOPS),
        theirs.cell(P99_US, 1),
        "QD1".to_owned(),
        ours.ratio(theirs, IOPS),
    ];
    let wanted = "| point | rate | p99 | depth | ratio |\n|---|---:|---:|---|---:|\n\
                  | read | 6,000 (1,000-9,000, 75 %) | - | QD1 | 0.900 (0.500-1.200, 75 %) |\n";
    assert_eq!(table("point | rate | p99 | depth | ratio", [row]), wanted);
}
