//! The learning curve as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

/// Success rates over iterations.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Curve {
    /// Iteration and share of won evaluation episodes.
    pub eval: Vec<(u64, f64)>,
    /// Iteration and share of won training episodes.
    pub episodes: Vec<(u64, f64)>,
}

const EVAL: RGBColor = RGBColor(200, 60, 30);
const EPISODES: RGBColor = RGBColor(110, 150, 200);
/// Longest line in points; longer ones are thinned out.
const MOST_POINTS: usize = 1000;

impl Curve {
    /// Adds the values of a row of metrics.
    pub fn push(&mut self, iteration: u64, eval: Option<f64>, episodes: Option<f64>) {
        self.eval.extend(eval.filter(|v| v.is_finite()).map(|v| (iteration, v)));
        self.episodes.extend(episodes.filter(|v| v.is_finite()).map(|v| (iteration, v)));
    }

    /// Draws the curve. The x axis ends at `last`.
    pub fn svg(&self, last: u64) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text, last.max(1)).map_err(|error| anyhow!("cannot draw the learning curve: {error}"))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String, last: u64) -> Result<(), Box<dyn std::error::Error + '_>> {
        let root = SVGBackend::with_string(text, (800, 480)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption("Success over iterations", ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(52)
            .y_label_area_size(64)
            .build_cartesian_2d(0..last, 0.0..1.0)?;
        chart
            .configure_mesh()
            .x_desc("iteration")
            .y_desc("share of episodes won")
            .label_style(("sans-serif", 15))
            .axis_desc_style(("sans-serif", 17))
            // 1 means no light lines; 0 would loop forever in plotters.
            .x_max_light_lines(1)
            .y_max_light_lines(1)
            .y_labels(11)
            .y_label_formatter(&|v| format!("{:.0} %", v * 100.0))
            .draw()?;
        let key = |color: RGBColor| move |(x, y)| PathElement::new([(x, y), (x + 20, y)], color.stroke_width(3));
        chart
            .draw_series(LineSeries::new(thinned(&self.episodes), EPISODES.stroke_width(1)))?
            .label("training episodes")
            .legend(key(EPISODES));
        chart
            .draw_series(LineSeries::new(thinned(&self.eval), EVAL.stroke_width(3)).point_size(4))?
            .label("evaluation")
            .legend(key(EVAL));
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 15))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

fn thinned(points: &[(u64, f64)]) -> impl Iterator<Item = (u64, f64)> {
    let stride = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.last().filter(|_| !(points.len() - 1).is_multiple_of(stride));
    points.iter().step_by(stride).chain(last).copied()
}
