//! The values of one figure over several rounds: median, extremes, mean and confidence.

use serde_json::{Value, json};

/// Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; near 2 beyond them.
const STUDENT_T: [f64; 15] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131,
];

/// The values of one figure, in the order of the rounds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ValueSpread(Vec<f64>);

impl ValueSpread {
    /// `None` if there are no values.
    pub(crate) fn of(values: Vec<f64>) -> Option<ValueSpread> {
        (!values.is_empty()).then_some(ValueSpread(values))
    }

    #[cfg(test)]
    pub(crate) fn one(value: f64) -> ValueSpread {
        ValueSpread(vec![value])
    }

    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let half = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 }
    }

    pub(crate) fn low(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn high(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    pub(crate) fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The half width of the 95 % confidence interval around the mean; `None` for one value.
    pub(crate) fn confidence(&self) -> Option<f64> {
        let freedom = self.0.len().checked_sub(2)? + 1;
        let mean = self.mean();
        let squares: f64 = self.0.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (squares / freedom as f64).sqrt();
        let t = STUDENT_T.get(freedom - 1).copied().unwrap_or(2.1);
        Some(t * deviation / (self.0.len() as f64).sqrt())
    }

    /// Round by round, this as a share of `other`.
    pub(crate) fn over(&self, other: &ValueSpread) -> ValueSpread {
        ValueSpread(self.0.iter().zip(&other.0).map(|(mine, other)| mine / other).collect())
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "median": self.median(), "low": self.low(), "high": self.high(), "mean": self.mean(),
            "confidence95": self.confidence(), "rounds": self.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_confidence_of_five_runs_is_that_of_the_table() {
        let spread = ValueSpread::of(vec![9.0, 10.0, 11.0, 10.0, 10.0]).expect("five values");
        let found = spread.confidence().expect("five values have a deviation");
        // s = sqrt(0.5), t(4) = 2.776
        assert!((found - 2.776 * 0.5_f64.sqrt() / 5.0_f64.sqrt()).abs() < 1e-12, "{found}");
        assert_eq!(ValueSpread::one(3.0).confidence(), None);
    }

    #[test]
    fn ratios_are_of_values_of_the_same_round() {
        let [a, b] =
            [vec![1.0, 6.0, 9.0], vec![2.0, 3.0, 9.0]].map(|it| ValueSpread::of(it).unwrap());
        let ratio = a.over(&b);
        assert_eq!((ratio.low(), ratio.median(), ratio.high()), (0.5, 1.0, 2.0));
        assert_eq!(ValueSpread::of(Vec::new()), None);
    }
}
