//! What the parts of a step weigh in its cost.

/// The weights of the parts of a step in its cost. Transfers that nothing overlaps with count 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Weights {
    /// Of ops that compute much, such as products.
    pub heavy: f64,
    /// Of other ops.
    pub light: f64,
    /// Of transfers that overlap with computation.
    pub overlapped: f64,
}

impl Weights {
    /// The part of the time of ops that compute little during which transfers take place. The rest is fused away.
    pub(crate) const UNFUSED: f64 = 1.0 / 2.0;

    /// Everything takes place one after another.
    pub(crate) const ALL: Weights = Weights { heavy: 1.0, light: 1.0, overlapped: 1.0 };

    /// Where device and link work at the same time, and the link's time has a price between 0 and 1.
    /// `exposed` is the part of a transfer that adds to the step all the same.
    pub(crate) fn at(price: f64, exposed: f64) -> Weights {
        Weights { heavy: 1.0 - price, light: 1.0 - Weights::UNFUSED * price, overlapped: price + exposed }
    }
}
