//! The tables of limits, of neighbours, and of limits that are not reached.

use flowstone_experiment::{Experiment, IOPS, signed, table};

use super::{HOG, LIMITS, MODEST, MODEST_P99, NEIGHBOURS, OFF, OVERHEAD, WINDOWS, shape};

/// Renders the accuracy of limits.
pub fn limits(experiment: &Experiment) -> String {
    let rows = LIMITS.iter().map(|(limit, queues, depth, wanted)| {
        let shape = shape(limit, *queues, *depth);
        let mut row = vec![shape.clone(), format!("{wanted:.0}")];
        for (window, ..) in WINDOWS {
            let off = experiment.at(&shape, window).all(OFF);
            let worst = off.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs()));
            row.extend([signed(off), signed(Vec::from_iter(worst))]);
        }
        row
    });
    let titles = "limit, 4 KiB random writes, image on tmpfs | wanted/s | 1 s: median | worst | \
                  100 ms: median | worst";
    table(titles, rows)
}

/// Renders the effect of a greedy neighbour.
pub fn neighbours(experiment: &Experiment) -> String {
    let rows = cases(experiment, NEIGHBOURS).map(|(name, point, first, case)| {
        let [alone, own] = [first, case].map(|case| experiment.at(point, case));
        vec![
            name,
            own.count(HOG),
            own.ratio(alone, HOG),
            own.count(MODEST),
            own.spread(MODEST_P99, 0),
            own.ratio(alone, MODEST_P99),
        ]
    });
    let titles = "4 KiB, raw images | hog at QD128, requests/s | of alone | neighbour at QD1, \
                  requests/s | p99, us | of alone";
    table(titles, rows)
}

/// Renders the cost of limits that are not reached.
pub fn overhead(experiment: &Experiment) -> String {
    let rows = cases(experiment, OVERHEAD).map(|(name, point, first, case)| {
        let [first, own] = [first, case].map(|case| experiment.at(point, case));
        vec![name, own.count(IOPS), own.ratio(first, IOPS)]
    });
    table("`null` backend, 4 KiB random reads | requests/s | of the first, by rounds", rows)
}

/// Returns the name of each case at the points of a part, the point, its first case, and the case.
fn cases<'a>(
    experiment: &'a Experiment,
    part: &'a str,
) -> impl Iterator<Item = (String, &'a str, &'a str, &'a str)> {
    let points = experiment.points().into_iter();
    points.filter_map(move |point| Some((point.strip_prefix(part)?, point))).flat_map(
        |(what, point)| {
            let cases = experiment.contenders(point);
            let first = cases[0];
            cases.into_iter().map(move |case| (format!("{what}, {case}"), point, first, case))
        },
    )
}
