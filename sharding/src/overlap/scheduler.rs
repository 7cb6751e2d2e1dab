//! List scheduling of a part of a step with two resources, the device and its link.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use super::{Role, StepOps};

/// How much longer a transfer may take, or shorter computation, without holding up others that wait for transfers.
const CAUTION: f64 = 2.0;

/// An op that may run from some time on. Of several, the first one is that which may run first.
#[derive(Clone, Copy, PartialEq)]
struct Ready {
    from: f64,
    op: usize,
}

impl Eq for Ready {}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap gives the greatest first.
        other.from.total_cmp(&self.from).then(other.op.cmp(&self.op))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The schedule as it is made.
pub(super) struct Scheduler<'s> {
    step: &'s StepOps,
    /// The part of the step that it orders.
    part: usize,
    order: Vec<usize>,
    placed: Vec<bool>,
    /// How many of the ops that each needs are not placed.
    missing: Vec<usize>,
    /// When the results of each are there, and when they are if ranks and links are late.
    ends: Vec<f64>,
    late_ends: Vec<f64>,
    /// When the device and its link are free.
    device: f64,
    link: f64,
    /// As [`StepOps::until_wait`]. Where no such transfer follows, the seconds are infinite.
    until_wait: Vec<(usize, f64)>,
    /// The next transfer that others wait for, and the seconds until then.
    wait: usize,
    left: f64,
    /// Whether no transfer was launched since the device waited for one.
    is_new_gap: bool,
    /// Sums that may be placed.
    sums: VecDeque<usize>,
    /// Updates that may be placed, those that a transfer needs apart.
    to_send: BinaryHeap<Ready>,
    others: BinaryHeap<Ready>,
    /// The early gathers that are not placed, the last one first, and the bytes of those that are placed and not read.
    early: Vec<usize>,
    unread: Vec<(usize, f64)>,
}

impl<'s> Scheduler<'s> {
    /// For a part of a step, behind all parts before it.
    pub fn new(step: &'s StepOps, part: usize) -> Self {
        let count = step.ops.len();
        let is_before = |op: usize| step.parts[op] < part;
        // Early gathers in the order of their first readers.
        let is_early = |op: &usize| step.roles[*op] == Role::Early && step.parts[*op] == part;
        let mut early: Vec<usize> = (0..count).filter(is_early).collect();
        early.sort_by_key(|op| std::cmp::Reverse((step.first_reader(*op), *op)));
        Scheduler {
            step,
            part,
            order: Vec::with_capacity(count),
            placed: (0..count).map(is_before).collect(),
            missing: step
                .needs
                .iter()
                .map(|needs| needs.iter().filter(|from| !step.is_on_demand(**from) && !is_before(**from)).count())
                .collect(),
            ends: vec![0.0; count],
            late_ends: vec![0.0; count],
            device: 0.0,
            link: 0.0,
            until_wait: step.until_wait(part),
            wait: count,
            left: f64::INFINITY,
            is_new_gap: true,
            sums: VecDeque::new(),
            to_send: BinaryHeap::new(),
            others: BinaryHeap::new(),
            early,
            unread: Vec::new(),
        }
    }

    /// The ops of the part in order.
    pub fn run(mut self) -> Vec<usize> {
        let (step, part) = (self.step, self.part);
        let is_own = |op: &usize| step.parts[*op] == part;
        // What only parts before make is there.
        for op in (0..step.ops.len()).filter(is_own).filter(|op| step.needs[*op].iter().any(|from| !is_own(from))) {
            if self.missing[op] == 0 && !self.placed[op] {
                self.release(op);
            }
        }
        for op in step.main.iter().copied().filter(is_own) {
            if self.placed[op] {
                continue;
            }
            step.needs[op].iter().for_each(|from| self.place_with_needs(*from));
            (self.wait, self.left) = self.until_wait[op];
            self.fill_link(self.device.max(self.ready(op)));
            // Updates fill the time until the operands come.
            while let Some(ready) = self.next_update().filter(|ready| ready.from <= self.device)
                && self.ready(op) > self.device + step.seconds[ready.op] / 2.0
            {
                self.place_with_needs(ready.op);
            }
            self.place_with_needs(op);
        }
        self.left = f64::INFINITY;
        self.fill_link(self.device);
        while let Some(op) = self.next_last_update() {
            self.place_with_needs(op);
        }
        // Whatever is left serves nothing.
        (0..step.ops.len()).filter(is_own).for_each(|op| self.place_with_needs(op));
        self.order
    }

    /// Gives the link work where it has none at some time: updates whose results are sent, and early gathers.
    fn fill_link(&mut self, now: f64) {
        let placed = &self.placed;
        let step = self.step;
        self.unread.retain(|(op, _)| !step.followers[*op].iter().any(|reader| placed[*reader]));
        loop {
            let is_free = self.link <= now || self.left == f64::INFINITY && !self.sums.is_empty();
            if !is_free && self.link > now + step.slack {
                return;
            }
            let backlog = (self.link - now).max(0.0);
            self.forget_placed();
            let placed = &self.placed;
            self.sums.retain(|op| !placed[*op]);
            let fits = |op: usize| backlog + step.seconds[op] * CAUTION <= self.left;
            // Sums that fit into no gap take a whole one.
            let sum = self.sums.iter().copied().find(|op| fits(*op));
            let sum = sum.or(self.sums.front().copied().filter(|_| self.is_new_gap));
            if let Some(op) = sum.filter(|_| is_free) {
                self.is_new_gap = false;
                self.place_with_needs(op);
                continue;
            }
            let update = self.to_send.peek().copied().filter(|ready| is_free && ready.from <= self.device);
            if let Some(ready) = update.filter(|ready| !step.is_transfer[ready.op] || fits(ready.op)) {
                self.place_with_needs(ready.op);
                continue;
            }
            let held: f64 = self.unread.iter().map(|(_, bytes)| bytes).sum();
            // One that is read before the next wait does not hold it up.
            let may_begin = |op: usize| step.first_reader(op) < self.wait || fits(op) || self.is_new_gap;
            match self.early.last().copied() {
                Some(op) if self.placed[op] => _ = self.early.pop(),
                Some(op) if may_begin(op) && (held == 0.0 || held + step.bytes[op] <= step.room) => {
                    self.early.pop();
                    self.is_new_gap = false;
                    self.place_with_needs(op);
                    self.unread.push((op, step.bytes[op]));
                }
                _ => return,
            }
        }
    }

    fn forget_placed(&mut self) {
        for heap in [&mut self.to_send, &mut self.others] {
            while heap.peek().is_some_and(|ready| self.placed[ready.op]) {
                heap.pop();
            }
        }
    }

    /// The update that may run first.
    fn next_update(&mut self) -> Option<Ready> {
        self.forget_placed();
        match (self.to_send.peek(), self.others.peek()) {
            (Some(a), Some(b)) if b.from < a.from && a.from > self.device => Some(*b),
            (Some(a), _) => Some(*a),
            (None, other) => other.copied(),
        }
    }

    /// The same, of those that are left at the end: only updates wait for one that comes too early there.
    fn next_last_update(&mut self) -> Option<usize> {
        self.forget_placed();
        let open = self.to_send.iter().filter(|ready| !self.placed[ready.op]);
        let sent = open.map(|ready| (self.ready(ready.op), ready.op));
        let sent = sent.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        match (sent, self.others.peek()) {
            (Some((from, _)), Some(other)) if from > self.device => Some(other.op),
            (Some((_, op)), _) => Some(op),
            (None, other) => other.map(|ready| ready.op),
        }
    }

    /// When the operands of an op are there.
    fn ready(&self, op: usize) -> f64 {
        self.step.needs[op].iter().map(|from| self.ends[*from]).fold(0.0, f64::max)
    }

    /// Places an op behind those that it needs.
    fn place_with_needs(&mut self, op: usize) {
        let mut stack = vec![op];
        while let Some(op) = stack.last().copied() {
            let open = self.step.needs[op].iter().copied().find(|from| !self.placed[*from]);
            match open {
                _ if self.placed[op] => _ = stack.pop(),
                Some(from) => stack.push(from),
                None => {
                    self.place(op);
                    stack.pop();
                }
            }
        }
    }

    /// Places an op, all of whose operands are placed, and the reductions of its results.
    fn place(&mut self, op: usize) {
        if std::mem::replace(&mut self.placed[op], true) {
            return;
        }
        let ready = self.ready(op);
        self.order.push(op);
        let begin = ready.max(self.device);
        let at = if self.step.is_transfer[op] { &mut self.link } else { &mut self.device };
        *at = at.max(begin) + self.step.seconds[op];
        self.ends[op] = *at;
        let is_sum = self.step.roles[op] == Role::Sum;
        self.late_ends[op] = *at + if is_sum { self.step.slack + self.step.seconds[op] } else { 0.0 };
        match self.step.roles[op] {
            _ if self.step.waits(op) => self.is_new_gap = true,
            Role::Main if self.step.seconds[op] > 0.0 => self.is_new_gap = false,
            _ => {}
        }
        if self.step.is_on_demand(op) {
            return;
        }
        let followers = &self.step.followers[op];
        followers.iter().for_each(|follower| self.missing[*follower] -= 1);
        let is_free = |follower: &usize| self.missing[*follower] == 0 && self.step.parts[*follower] == self.part;
        let free: Vec<usize> = followers.iter().copied().filter(is_free).collect();
        free.into_iter().for_each(|follower| self.release(follower));
    }

    /// Places an op all of whose operands are placed, or notes that it may be.
    fn release(&mut self, op: usize) {
        match self.step.roles[op] {
            Role::Reduction | Role::ForSum => self.place_with_needs(op),
            // Nothing waits for transfers any more, so the link takes them in this order.
            Role::Sum if self.left == f64::INFINITY => self.place_with_needs(op),
            Role::Sum => self.sums.push_back(op),
            _ => self.offer(op),
        }
    }

    /// Notes an update all of whose operands are placed.
    fn offer(&mut self, op: usize) {
        if self.step.roles[op] == Role::Update {
            // An update that comes too early stops the backward pass, so it allows for ranks and links that are late.
            let needs = self.step.needs[op].iter();
            let ready = Ready { from: needs.map(|from| self.late_ends[*from]).fold(0.0, f64::max), op };
            if self.step.leads_to_transfer[op] { self.to_send.push(ready) } else { self.others.push(ready) }
        }
    }
}
