//! How the times grow: with the number of sandboxes that live meanwhile, and with the size of a burst.
//! The floor is measured beside the first, so that one sees what is the kernel's.

use std::path::Path;

use anyhow::Context;
use plotters::prelude::*;

use super::clock::Stopwatch;
use super::crowd::burst_times;
use super::floor::Floor;
use super::ours::{Server, create, exec, remove};
use super::peers::Contender;
use super::report::Report;
use super::samples::{Samples, millis, ms, times};

const LIVE: [usize; 5] = [10, 30, 100, 300, 1000];
const BURSTS: [usize; 5] = [1, 3, 10, 30, 100];
const CYCLES: usize = 30;
const REPEATS: usize = 3;

/// (how many, what of it): the points of one line.
type Line = Vec<(f64, f64)>;

#[derive(Default)]
struct Curves {
    create: Line,
    create_p99: Line,
    exec: Line,
    floor: Line,
    burst_all: Line,
    burst_median: Line,
}

/// Measures both, and draws them into the file.
pub(super) fn run(
    server: &Server,
    (rootfs, work): (&Path, &Path),
    file: &Path,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut curves = Curves::default();
    live(server, &mut Floor::start(rootfs, work)?, &mut curves, report)?;
    bursts(server, &mut curves, report)?;
    draw(&curves, file).with_context(|| format!("draw {}", file.display()))
}

fn live(
    server: &Server,
    floor: &mut Floor,
    curves: &mut Curves,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut http = server.client()?;
    let mut ids = Vec::new();
    for level in LIVE {
        while ids.len() < level {
            ids.push(create(&mut http, "host")?);
        }
        let (mut ours, mut execs, mut floors) = <(Samples, Samples, Samples)>::default();
        for round in 0..CYCLES {
            let watch = Stopwatch::start();
            let id = create(&mut http, "host")?;
            exec(&mut http, &id)?;
            ours.push(Some(watch.time()));
            remove(&mut http, &id)?;
            let watch = Stopwatch::start();
            exec(&mut http, &ids[round * ids.len() / CYCLES])?;
            execs.push(Some(watch.time()));
            floors.push(floor.cycle()?.first);
        }
        let at = count(level)?;
        curves.create.push((at, millis(ours.median())));
        curves.create_p99.push((at, millis(ours.p99())));
        curves.exec.push((at, millis(execs.median())));
        curves.floor.push((at, millis(floors.median())));
        report.curve(format!(
            "{level} live: create → first exec {} ms = {:.2}× floor ({} ms); exec {} ms",
            ours.shown(),
            times(ours.median(), floors.median()),
            floors.shown(),
            execs.shown()
        ));
    }
    for id in &ids {
        remove(&mut http, id)?;
    }
    Ok(())
}

fn bursts(server: &Server, curves: &mut Curves, report: &mut Report) -> anyhow::Result<()> {
    for size in BURSTS {
        let (mut all, mut medians) = <(Samples, Samples)>::default();
        for _ in 0..REPEATS {
            let (times, failed) = burst_times(server, size, report)?;
            anyhow::ensure!(failed == 0, "{failed} of a burst of {size} failed");
            all.push(Some(times.p99()));
            medians.push(Some(times.median()));
        }
        let at = count(size)?;
        curves.burst_all.push((at, millis(all.median())));
        curves.burst_median.push((at, millis(medians.median())));
        report.curve(format!(
            "burst of {size}: all in {} ms, median {} ms (of {REPEATS} bursts)",
            ms(all.median()),
            ms(medians.median())
        ));
    }
    Ok(())
}

fn count(number: usize) -> anyhow::Result<f64> {
    Ok(u32::try_from(number)?.into())
}

fn draw(curves: &Curves, file: &Path) -> anyhow::Result<()> {
    let area = SVGBackend::new(file, (1000, 420)).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(500);
    panel(
        &left,
        ("Latency by live sandboxes", "live sandboxes", 10.0..1000.0),
        &[
            ("create → first exec, p99", &curves.create_p99, RGBColor(230, 150, 120)),
            ("create → first exec, p50", &curves.create, RGBColor(200, 60, 40)),
            ("floor, create → first exec, p50", &curves.floor, RGBColor(120, 120, 120)),
            ("exec of /bin/true, p50", &curves.exec, RGBColor(40, 90, 180)),
        ],
    )?;
    panel(
        &right,
        ("Creates at once, each with an exec", "size of the burst", 1.0..100.0),
        &[
            ("all answered", &curves.burst_all, RGBColor(200, 60, 40)),
            ("median of them", &curves.burst_median, RGBColor(40, 90, 180)),
        ],
    )?;
    area.present()?;
    Ok(())
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(
    area: &Area<'_>,
    (title, what, range): (&str, &str, std::ops::Range<f64>),
    lines: &[(&str, &Line, RGBColor)],
) -> anyhow::Result<()> {
    let highest = lines.iter().flat_map(|line| line.1).map(|point| point.1).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(52)
        .build_cartesian_2d(range.log_scale(), 0.0..highest * 1.35)?;
    let whole = |number: &f64| format!("{number:.0}");
    chart
        .configure_mesh()
        .x_desc(what)
        .y_desc("ms")
        .x_label_formatter(&whole)
        .y_label_formatter(&whole)
        .light_line_style(WHITE)
        .draw()?;
    for (name, line, color) in lines {
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.iter().copied(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        let dots = line.iter().map(|point| Circle::new(*point, 3, color.filled()));
        chart.draw_series(dots)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .draw()?;
    Ok(())
}
