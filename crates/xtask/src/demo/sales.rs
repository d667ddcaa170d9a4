//! The data of the demo, and what a program has to find in it.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

const ROWS: u64 = 20_000;
const REGIONS: &[&str] = &["Aquitaine", "Gascogne", "Languedoc", "Périgord", "Quercy"];

pub(super) struct Sales {
    pub csv: String,
    pub rows: u64,
    pub expected: Value,
}

pub(super) fn make() -> Sales {
    let mut csv = String::from("day,region,cents\n");
    let mut totals: BTreeMap<&str, (u64, u64, u64)> = BTreeMap::new();
    let mut state: u64 = 1;
    for row in 0..ROWS {
        // Any numbers will do, as long as they are the same every time.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let region = REGIONS[usize::try_from((state >> 40) % 5).expect("below five")];
        let cents = (state >> 33) % 100_000;
        writeln!(csv, "{},{region},{cents}", row % 365).expect("a string takes everything");
        let (count, sum, largest) = totals.entry(region).or_default();
        *count += 1;
        *sum += cents;
        *largest = cents.max(*largest);
    }
    let expected = totals
        .into_iter()
        .map(|(region, (sales, cents, largest))| {
            let value = json!({ "sales": sales, "cents": cents, "largest": largest });
            (region.to_owned(), value)
        })
        .collect::<serde_json::Map<_, _>>();
    Sales { csv, rows: ROWS, expected: Value::Object(expected) }
}
