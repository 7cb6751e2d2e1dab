//! When an interrupted training ends. Ranks that are processes may hear of an interruption one by one, and must end after the same step.

use std::time::{Duration, Instant};

use of_diag::Diagnostics;
use of_runtime::RankVariables;

use crate::session::run_error;

/// Ranks ask one another about this often.
const PERIOD: Duration = Duration::from_millis(500);

/// The time between two questions is at least so many times that of one, so that questions take less than 0.5 % of the time.
const LEAST: u32 = 200;

/// How ranks that are processes agree on the step after which they end: all tell one another after the same steps whether they were
/// interrupted. The steps between two questions follow from what all ranks say about their times, so they are the same on all ranks.
pub struct Agreement {
    /// Steps until the next question.
    left: u64,
    /// Steps between the last question and the next one.
    interval: u64,
    /// The end of the last question.
    since: Instant,
    /// How long the last one took.
    cost: Duration,
}

impl Agreement {
    /// Ranks that begin together, or join again.
    pub fn new() -> Agreement {
        Agreement { left: 1, interval: 1, since: Instant::now(), cost: Duration::ZERO }
    }

    /// After a step: what interrupts the training on any rank, where the question is due. All ranks must do this after each step.
    ///
    /// # Errors
    /// When a rank was lost.
    pub fn after_step(&mut self, ranks: &RankVariables, own: Option<u8>) -> Result<Option<u8>, Diagnostics> {
        self.left -= 1;
        if self.left > 0 {
            return Ok(None);
        }
        let word = Word { reason: own, step: self.since.elapsed() / self.interval as u32, cost: self.cost };
        let words = self.ask(ranks, word)?;
        self.interval = next_interval(&words, self.interval);
        self.left = self.interval;
        Ok(words.iter().filter_map(|word| word.reason).max())
    }

    /// The same between epochs, where it is always due.
    ///
    /// # Errors
    /// When a rank was lost.
    pub fn after_epoch(&mut self, ranks: &RankVariables, own: Option<u8>) -> Result<Option<u8>, Diagnostics> {
        let word = Word { reason: own, step: Duration::ZERO, cost: self.cost };
        let words = self.ask(ranks, word)?;
        self.left = self.interval;
        Ok(words.iter().filter_map(|word| word.reason).max())
    }

    fn ask(&mut self, ranks: &RankVariables, own: Word) -> Result<Vec<Word>, Diagnostics> {
        let began = Instant::now();
        let words = ranks.tell_all(own.to_bits()).map_err(|e| run_error(&e))?;
        self.since = Instant::now();
        self.cost = self.since - began;
        Ok(words.into_iter().map(Word::from_bits).collect())
    }
}

/// The steps until the next question. A rank that came late to the last one waited for no other, so the least time is what one takes. The
/// number at most doubles: the first steps of a training may be quicker or slower than the others.
fn next_interval(words: &[Word], last: u64) -> u64 {
    let step = words.iter().map(|word| word.step).max().unwrap_or_default();
    let cost = words.iter().map(|word| word.cost).min().unwrap_or_default();
    let time = PERIOD.max(cost * LEAST);
    let steps = time.as_nanos() / step.as_nanos().max(1);
    // A number of steps is divided by in 32 bits.
    u64::try_from(steps).unwrap_or(u64::MAX).clamp(1, last.saturating_mul(2)).min(u64::from(u32::MAX))
}

/// What a rank tells the others.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Word {
    /// What interrupts it; 0 is no reason.
    reason: Option<u8>,
    /// The time of a step since the last question.
    step: Duration,
    /// The time of the last question.
    cost: Duration,
}

/// Bits of a time in microseconds: more than 4 minutes.
const TIME: u32 = 28;

impl Word {
    fn to_bits(self) -> u64 {
        let time = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX).min((1 << TIME) - 1);
        u64::from(self.reason.unwrap_or(0)) << (2 * TIME) | time(self.step) << TIME | time(self.cost)
    }

    fn from_bits(bits: u64) -> Word {
        let time = |bits: u64| Duration::from_micros(bits & ((1 << TIME) - 1));
        let reason = (bits >> (2 * TIME)) as u8;
        Word { reason: (reason != 0).then_some(reason), step: time(bits >> TIME), cost: time(bits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(step: Duration, cost: Duration) -> Word {
        Word { reason: None, step, cost }
    }

    #[test]
    fn words_keep_what_they_say() {
        let times = word(Duration::from_micros(1234), Duration::from_micros(56));
        for word in [times, Word { reason: Some(15), ..times }, Word { reason: Some(255), ..times }] {
            assert_eq!(Word::from_bits(word.to_bits()), word);
        }
        let long = word(Duration::from_secs(100_000), Duration::from_secs(100_000));
        let most = Duration::from_micros((1 << TIME) - 1);
        assert_eq!(Word::from_bits(long.to_bits()), word(most, most));
    }

    #[test]
    fn questions_come_twice_a_second_and_cost_little() {
        let ms = Duration::from_millis;
        let us = Duration::from_micros;
        // The slowest step of all ranks counts, and the shortest question, which waited for no other rank.
        assert_eq!(next_interval(&[word(ms(5), us(100)), word(ms(10), ms(90))], 64), 50);
        assert_eq!(next_interval(&[word(ms(5), us(100)), word(ms(10), ms(90))], 8), 16);
        // A question of 10 ms comes after 2 s.
        assert_eq!(next_interval(&[word(ms(10), ms(10))], 1000), 200);
        // Steps that are longer than the period have one question each.
        assert_eq!(next_interval(&[word(ms(3000), us(100))], 1000), 1);
        // The interval is a number of 32 bits, whatever the times are.
        assert_eq!(next_interval(&[word(Duration::ZERO, ms(100_000))], u64::MAX), u64::from(u32::MAX));
    }
}
