//! scratch
use flowstone_vmtest::framework::lab::Lab;
fn main() -> anyhow::Result<()> {
    let s = std::io::read_to_string(std::io::stdin())?;
    let lab = Lab::open()?;
    let image = lab.image("320M")?;
    let d = lab.serve(&image, &["--queues", "2"])?;
    let mut g = lab.boot(&d, 2)?;
    println!("{}", g.run(&s)?);
    g.power_off()
}
