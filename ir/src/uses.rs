//! The readers of one value.

use smallvec::SmallVec;

use crate::graph::Use;

/// The uses of a value, in the order in which they were made. A removal costs the distance of the use from the nearer
/// end of the list: a pass erases the readers of a value in order or in reverse, and a value may have a million.
#[derive(Clone, Default)]
pub(crate) struct Uses {
    /// The first `start` were removed.
    list: SmallVec<[Use; 2]>,
    start: u32,
}

impl Uses {
    pub fn as_slice(&self) -> &[Use] {
        &self.list[self.start as usize..]
    }

    pub fn push(&mut self, u: Use) {
        self.list.push(u);
    }

    pub fn extend(&mut self, other: &Uses) {
        self.list.extend_from_slice(other.as_slice());
    }

    /// Removes `u`, if it is there.
    pub fn remove(&mut self, u: Use) {
        let n = self.as_slice().len();
        let from_both_ends = (0..n.div_ceil(2)).flat_map(|i| [i, n - 1 - i]);
        let Some(i) = from_both_ends.into_iter().find(|i| self.as_slice()[*i] == u) else { return };
        let start = self.start as usize;
        if i < n / 2 {
            self.list.copy_within(start..start + i, start + 1);
            self.start += 1;
        } else {
            self.list.remove(start + i);
        }
        // Each removal at the front pays for one of the elements that move here.
        if self.start as usize > self.list.len() / 2 {
            self.list.drain(..self.start as usize);
            self.start = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::OpId;

    #[test]
    fn removals_keep_the_order_of_the_rest() {
        let of = |i: u32| Use { op: OpId(i), operand: 0 };
        // Strides that have no divisor with the length visit every use once: from the front, the back, in between.
        for stride in [1, 36, 5, 17] {
            let mut uses = Uses::default();
            let mut expected: Vec<Use> = (0..37).map(of).collect();
            expected.iter().for_each(|u| uses.push(*u));
            for k in 0..37 {
                let u = of(k * stride % 37);
                uses.remove(u);
                uses.remove(u);
                expected.retain(|e| *e != u);
                assert_eq!(uses.as_slice(), expected);
                if k == 20 {
                    uses.push(of(100));
                    expected.push(of(100));
                }
            }
            assert_eq!(uses.as_slice(), [of(100)]);
        }
    }
}
