//! Copies of a rank's state in memory, from which a job goes on after it lost a rank.
//!
//! A rank keeps its parts of the variables after each of the last two steps that were copied: another rank may be one step behind. Of
//! parts that no third rank has, the next rank keeps a copy as well, its keeper. Ranks of a broadcast value have equal bytes, so
//! such parts need no keeper. After a loss all ranks tell each other what they have ([`StateCopies::recover`]), and go back to the
//! newest step that every rank has or gets.

use std::collections::BTreeMap;
use std::sync::Arc;

use of_plan::{LayoutKind, MeshPort, MeshProgram, Runs, coords, holds};

use crate::device::{Arena, Buffer};
use crate::rank_exchange::{KEEP, REPORT, RESTORE, RankExchange};
use crate::transport::TransferBlock;
use crate::{RankVariables, RunError, Variables};

/// What belongs to a step as the variables do, equal on all ranks.
pub type Note = [u64; 2];

/// The alignment of parts in a copy, in bytes.
const LINE: usize = 64;

/// A place for a copy.
#[derive(Debug, Default)]
struct Version {
    /// The step after which it was made.
    step: Option<u64>,
    note: Note,
    memory: Option<Buffer>,
    /// The session whose transport gave the memory.
    session: u32,
}

/// A rank's copies of its own state, and of that of the rank before it.
#[derive(Debug, Default)]
pub struct StateCopies {
    own: [Version; 2],
    kept: [Version; 2],
    /// The sessions so far: each has a transport of its own.
    session: u32,
    layouts: Option<Layouts>,
}

/// Where the parts of a rank are in a copy. Those that no other rank has come first.
#[derive(Debug, Default)]
struct Layout {
    parts: Vec<Part>,
    /// Bytes of the parts that no other rank has.
    unique: usize,
    total: usize,
}

#[derive(Clone, Copy, Debug)]
struct Part {
    /// The number of the variable in the mesh.
    variable: usize,
    start: usize,
    len: usize,
}

/// The layouts of the own copy and of that of the rank before.
#[derive(Debug)]
struct Layouts {
    own: Layout,
    /// For each own part the number of the variable in the rank's program.
    variables: Vec<usize>,
    ward: Layout,
}

/// What a rank has, as it tells the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Report {
    own: [Option<u64>; 2],
    notes: [Note; 2],
    kept: [Option<u64>; 2],
    /// Whether it was there before the first copy.
    fresh: bool,
    mark: u64,
}

/// How a job goes on after it lost a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// No step was done yet.
    Begin,
    /// From a step that all ranks have now.
    Step {
        /// The step.
        step: u64,
        /// What was copied with it.
        note: Note,
        /// The mark of the first rank, or the smallest one where that is a new process.
        mark: u64,
    },
    /// The state of these ranks is gone.
    Lost(Vec<u32>),
}

impl Layout {
    fn of(program: &MeshProgram, rank: usize) -> Layout {
        let mesh = program.extents();
        let at = coords(&mesh, rank);
        let mut layout = Layout::default();
        for unique in [true, false] {
            for (variable, port) in program.variables.iter().enumerate() {
                if holds(&port.layout, &at) && is_unique(port, &mesh) == unique {
                    let len = part_len(port, &mesh, &at);
                    layout.parts.push(Part { variable, start: layout.total, len });
                    layout.total += len.next_multiple_of(LINE);
                }
            }
            if unique {
                layout.unique = layout.total;
            }
        }
        layout
    }

    fn part(&self, variable: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.variable == variable)
    }
}

/// Whether no two ranks have the same part of a variable.
fn is_unique(port: &MeshPort, mesh: &[usize]) -> bool {
    !port.layout.iter().zip(mesh).any(|(layout, n)| layout.kind() == LayoutKind::Broadcast && *n > 1)
}

/// Bytes of the part of a rank.
fn part_len(port: &MeshPort, mesh: &[usize], at: &[usize]) -> usize {
    let elements = |microbatch| -> i64 { port.block(mesh, at, microbatch).iter().map(|(_, n)| *n as i64).product() };
    let dims: Vec<i64> = vec![(0..port.count()).map(elements).sum()];
    port.dtype().byte_len(&dims).and_then(|len| usize::try_from(len).ok()).unwrap_or(0)
}

/// The rank that keeps copies of another one.
fn keeper(rank: usize, ranks: usize) -> usize {
    (rank + 1) % ranks
}

/// A rank that has what another one needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source {
    rank: usize,
    /// Whether it has it as the other one's keeper.
    kept: bool,
}

/// Where a rank gets its part of a variable at a step, which it does not have itself.
fn source(program: &MeshProgram, reports: &[Report], step: u64, rank: usize, variable: usize) -> Option<Source> {
    let mesh = program.extents();
    let port = &program.variables[variable];
    if is_unique(port, &mesh) {
        let keeper = keeper(rank, reports.len());
        return reports[keeper].kept.contains(&Some(step)).then_some(Source { rank: keeper, kept: true });
    }
    let at = coords(&mesh, rank);
    // They are equal along the axes of broadcasts.
    let has = |other: &usize| {
        let there = coords(&mesh, *other);
        let mut axes = port.layout.iter().zip(at.iter().zip(&there));
        reports[*other].own.contains(&Some(step))
            && axes.all(|(layout, (a, b))| layout.kind() == LayoutKind::Broadcast || a == b)
    };
    (0..reports.len()).find(has).map(|rank| Source { rank, kept: false })
}

/// The parts of a rank, and where it gets them.
type Sources = Vec<(Part, Source)>;

/// For each rank that does not have a step, where it gets its parts; or the ranks that cannot get one.
fn sources(program: &MeshProgram, reports: &[Report], step: u64) -> Result<BTreeMap<usize, Sources>, Vec<u32>> {
    let (mut out, mut lost) = (BTreeMap::new(), Vec::new());
    for (rank, _) in reports.iter().enumerate().filter(|(_, report)| !report.own.contains(&Some(step))) {
        let parts = Layout::of(program, rank).parts;
        let found: Option<Vec<_>> =
            parts.into_iter().map(|part| Some((part, source(program, reports, step, rank, part.variable)?))).collect();
        match found {
            Some(found) => drop(out.insert(rank, found)),
            None => lost.push(rank as u32),
        }
    }
    if lost.is_empty() { Ok(out) } else { Err(lost) }
}

/// What all ranks conclude from what they have.
fn agree(program: &MeshProgram, reports: &[Report]) -> Recovery {
    let mut steps: Vec<u64> = reports.iter().flat_map(|report| report.own).flatten().collect();
    steps.sort_unstable();
    steps.dedup();
    let has_state = |report: &&Report| report.own != [None; 2];
    let mut lost: Vec<u32> =
        reports.iter().zip(0..).filter(|(report, _)| !has_state(report)).map(|(_, rank)| rank).collect();
    for step in steps.into_iter().rev() {
        match sources(program, reports, step) {
            Ok(_) => {
                let note = reports.iter().find_map(|report| {
                    let at = report.own.iter().position(|own| *own == Some(step))?;
                    Some(report.notes[at])
                });
                let known = reports.iter().filter(has_state).map(|report| report.mark);
                let first = reports.first().filter(has_state).map(|report| report.mark);
                let mark = first.or_else(|| known.min()).unwrap_or(0);
                return Recovery::Step { step, note: note.unwrap_or_default(), mark };
            }
            Err(ranks) => lost = ranks,
        }
    }
    // Without a copy of one process that was there before, none can be of a later step.
    if reports.iter().any(|report| report.fresh) { Recovery::Begin } else { Recovery::Lost(lost) }
}

impl Report {
    const LEN: usize = 8 * 11;

    fn encode(&self) -> [u8; Report::LEN] {
        let step = |step: Option<u64>| step.unwrap_or(u64::MAX);
        let [own, kept] = [self.own, self.kept].map(|steps| steps.map(step));
        let [a, b] = self.notes;
        let words = [own[0], own[1], a[0], a[1], b[0], b[1], kept[0], kept[1], u64::from(self.fresh), self.mark, 0];
        let mut out = [0; Report::LEN];
        out.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        out
    }

    fn decode(bytes: &[u8]) -> Option<Report> {
        let bytes: &[u8; Report::LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[8 * at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let step = |at: usize| Some(word(at)).filter(|step| *step != u64::MAX);
        Some(Report {
            own: [step(0), step(1)],
            notes: [[word(2), word(3)], [word(4), word(5)]],
            kept: [step(6), step(7)],
            fresh: word(8) == 1,
            mark: word(9),
        })
    }
}

/// The place for the copy of a step: that of the same step, or of the older one.
fn place(versions: &[Version; 2], step: u64) -> usize {
    let same = versions.iter().position(|version| version.step == Some(step));
    same.unwrap_or_else(|| usize::from(versions[0].step > versions[1].step))
}

impl Version {
    /// The memory, of this length and of the transport of this session.
    fn memory(&mut self, exchange: &RankExchange, session: u32, len: usize) -> Result<&mut [u8], RunError> {
        if self.memory.is_none() || self.session != session {
            self.memory = None;
            self.memory = Some(allocate(exchange, len)?);
            self.session = session;
        }
        let buffer = self.memory.as_ref().and_then(|memory| memory.bytes_mut(0));
        buffer.ok_or_else(|| RunError::Internal("a copy of state has no memory".into()))
    }

    fn bytes(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| memory.bytes(0))
    }
}

/// Memory that the other ranks of this host read in place.
fn allocate(exchange: &RankExchange, len: usize) -> Result<Buffer, RunError> {
    let chunk = of_plan::Chunk { bytes: len.max(1) as u64, ..of_plan::Chunk::default() };
    let arena = Arena::with(exchange.plan(), std::slice::from_ref(&chunk), &|_, len| exchange.transport().memory(len));
    let arena = arena.map_err(|(_, e)| RunError::Internal(format!("no memory for a copy of state: {e}")))?;
    let buffer = Arc::new(arena).block(0, 0, len as u64, 0, 1);
    buffer.ok_or_else(|| RunError::Internal("a copy of state has no memory".into()))
}

impl StateCopies {
    /// The rank gets a new session, with another transport and new variables. Copies stay.
    pub fn begin_session(&mut self) {
        self.session += 1;
        self.layouts = None;
    }

    /// Whether there is a copy.
    pub fn is_empty(&self) -> bool {
        self.own.iter().all(|version| version.step.is_none())
    }

    /// Bytes that a rank copies, and those of them that its keeper copies as well.
    pub fn sizes(&self) -> Option<(usize, usize)> {
        self.layouts.as_ref().map(|layouts| (layouts.own.total, layouts.own.unique))
    }

    /// Copies the state after a step, on all ranks.
    ///
    /// # Errors
    /// When a rank stopped, a variable has no value, or there is no memory.
    pub fn take(&mut self, variables: &RankVariables, step: u64, note: Note) -> Result<(), RunError> {
        let exchange = variables.exchange();
        let taken = self.copy_own(variables, step, note).and_then(|()| self.keep(exchange, step));
        taken.map_err(|error| exchange.explain(error, None))
    }

    fn copy_own(&mut self, variables: &RankVariables, step: u64, note: Note) -> Result<(), RunError> {
        let exchange = variables.exchange();
        if self.layouts.is_none() {
            self.layouts = Some(Layouts::new(exchange, variables.own())?);
        }
        let (Some(layouts), Some(own)) = (&self.layouts, variables.own()) else { return Ok(()) };
        let version = &mut self.own[place(&self.own, step)];
        version.step = None;
        let to = version.memory(exchange, self.session, layouts.own.total)?;
        for (part, variable) in layouts.own.parts.iter().zip(&layouts.variables) {
            own.copy_to(*variable, &mut to[part.start..part.start + part.len])?;
        }
        (version.step, version.note) = (Some(step), note);
        Ok(())
    }

    /// Gives the parts that no other rank has to the keeper, and takes those of the rank before. No rank is more than one copy ahead
    /// of another one, because each hears of all.
    fn keep(&mut self, exchange: &RankExchange, step: u64) -> Result<(), RunError> {
        let (me, ranks) = (exchange.rank(), exchange.program().ranks.len());
        let Some(layouts) = &self.layouts else { return Ok(()) };
        let (keeper, ward) = (keeper(me, ranks), (me + ranks - 1) % ranks);
        let own = &self.own[place(&self.own, step)];
        let at = place(&self.kept, step);
        let kept = &mut self.kept[at];
        kept.step = None;
        let to = kept.memory(exchange, self.session, layouts.ward.unique)?;
        let word = step.to_le_bytes();
        let whole = |len: usize| Runs::of(&[(0, len)], &[(0, len)]);
        let (large, small) = (whole(layouts.own.unique), whole(word.len()));
        let blocks: Vec<TransferBlock<'_>> = (0..ranks)
            .filter(|other| *other != me)
            .map(|other| match other == keeper && layouts.own.unique > 0 {
                true => TransferBlock {
                    to: other as u32,
                    bytes: &own.bytes()[..layouts.own.unique],
                    block: &large,
                    element: 1,
                },
                false => TransferBlock { to: other as u32, bytes: &word, block: &small, element: 1 },
            })
            .collect();
        let others: Vec<u32> = (0..ranks).filter(|other| *other != me).map(|other| other as u32).collect();
        let mut whole = layouts.ward.unique == 0;
        exchange.rendezvous(KEEP, &blocks, &others, &mut |from, block| {
            if others[from] as usize == ward && !to.is_empty() && block.bytes.len() == to.len() {
                to.copy_from_slice(block.bytes);
                whole = true;
            }
        })?;
        if !whole {
            return Err(RunError::Internal(format!("the copy of the state of rank {ward} is not of its size")));
        }
        self.kept[at].step = Some(step);
        Ok(())
    }

    /// Waits until all ranks do the same.
    ///
    /// # Errors
    /// When a rank stopped.
    pub fn wait_for_all(variables: &RankVariables) -> Result<(), RunError> {
        let exchange = variables.exchange();
        report_to_all(exchange, Report::default()).map(drop).map_err(|error| exchange.explain(error, None))
    }

    /// After a loss, all ranks agree on the newest step that each has or gets from others, and go back to it. `fresh` says that this
    /// process was there before the first copy; `mark` is how far it was in what is not repeated.
    ///
    /// # Errors
    /// When another rank is lost, or there is no memory.
    pub fn recover(&mut self, variables: &RankVariables, fresh: bool, mark: u64) -> Result<Recovery, RunError> {
        let recovered = self.recover_together(variables, fresh, mark);
        recovered.map_err(|error| variables.exchange().explain(error, None))
    }

    fn recover_together(&mut self, variables: &RankVariables, fresh: bool, mark: u64) -> Result<Recovery, RunError> {
        let exchange = variables.exchange();
        let own = Report {
            own: [0, 1].map(|at: usize| self.own[at].step),
            notes: [0, 1].map(|at: usize| self.own[at].note),
            kept: [0, 1].map(|at: usize| self.kept[at].step),
            fresh,
            mark,
        };
        let reports = report_to_all(exchange, own)?;
        let recovery = agree(exchange.program(), &reports);
        let Recovery::Step { step, note, .. } = recovery else {
            self.own.iter_mut().chain(&mut self.kept).for_each(|version| version.step = None);
            return Ok(recovery);
        };
        if self.layouts.is_none() {
            self.layouts = Some(Layouts::new(exchange, variables.own())?);
        }
        self.restore(exchange, &reports, step, note)?;
        let (Some(layouts), Some(own)) = (&self.layouts, variables.own()) else { return Ok(recovery) };
        let version = &self.own[place(&self.own, step)];
        for (part, variable) in layouts.own.parts.iter().zip(&layouts.variables) {
            own.restore(*variable, &version.bytes()[part.start..part.start + part.len])?;
        }
        // A copy of a later step is of one that is done again.
        self.own.iter_mut().filter(|version| version.step != Some(step)).for_each(|version| version.step = None);
        self.keep(exchange, step)?;
        Ok(recovery)
    }

    /// Gives ranks that do not have a step their parts.
    fn restore(&mut self, exchange: &RankExchange, reports: &[Report], step: u64, note: Note) -> Result<(), RunError> {
        let (me, program) = (exchange.rank(), exchange.program());
        let odd = || RunError::Internal("a copy of state has other parts than it should".into());
        let sources = sources(program, reports, step).map_err(|_| odd())?;
        let Some(layouts) = &self.layouts else { return Ok(()) };
        // What this rank has, for each rank that needs it.
        let mut given: Vec<(usize, Vec<u8>)> = Vec::new();
        for (rank, parts) in sources.iter().filter(|(rank, _)| **rank != me) {
            let mut bytes = Vec::new();
            for (part, source) in parts.iter().filter(|(_, source)| source.rank == me) {
                let (versions, layout) =
                    if source.kept { (&self.kept, &layouts.ward) } else { (&self.own, &layouts.own) };
                let from = layout.part(part.variable).ok_or_else(odd)?;
                let version = &versions[place(versions, step)];
                bytes.extend(version.bytes().get(from.start..from.start + from.len).ok_or_else(odd)?);
            }
            if !bytes.is_empty() {
                given.push((*rank, bytes));
            }
        }
        let runs: Vec<Runs> = given.iter().map(|(_, b)| Runs::of(&[(0, b.len())], &[(0, b.len())])).collect();
        let blocks: Vec<TransferBlock<'_>> = given
            .iter()
            .zip(&runs)
            .map(|((to, bytes), block)| TransferBlock { to: *to as u32, bytes, block, element: 1 })
            .collect();
        let needed = sources.get(&me);
        let mut from: Vec<u32> =
            needed.into_iter().flatten().filter(|(part, _)| part.len > 0).map(|(_, s)| s.rank as u32).collect();
        from.sort_unstable();
        from.dedup();
        let mut got: Vec<Vec<u8>> = vec![Vec::new(); from.len()];
        exchange.rendezvous(RESTORE, &blocks, &from, &mut |at, block| got[at] = block.bytes.to_vec())?;
        let Some(needed) = needed else { return Ok(()) };
        let at = place(&self.own, step);
        let version = &mut self.own[at];
        version.step = None;
        let to = version.memory(exchange, self.session, layouts.own.total)?;
        let mut used = vec![0; from.len()];
        for (part, source) in needed.iter().filter(|(part, _)| part.len > 0) {
            let sender = from.iter().position(|rank| *rank as usize == source.rank).ok_or_else(odd)?;
            let bytes = got[sender].get(used[sender]..used[sender] + part.len).ok_or_else(odd)?;
            to[part.start..part.start + part.len].copy_from_slice(bytes);
            used[sender] += part.len;
        }
        (version.step, version.note) = (Some(step), note);
        Ok(())
    }
}

impl Layouts {
    fn new(exchange: &RankExchange, variables: Option<&Arc<Variables>>) -> Result<Layouts, RunError> {
        let (program, me) = (exchange.program(), exchange.rank());
        let own = Layout::of(program, me);
        let number = |part: &Part| {
            let port = &program.variables[part.variable];
            let odd = || RunError::Internal(format!("variable `{}` has another part than its layout", port.name));
            let list = variables.map_or(&[][..], |variables| variables.list());
            let at = list.iter().position(|variable| variable.name == port.name).ok_or_else(odd)?;
            (list[at].bytes() == Some(part.len as u64)).then_some(at).ok_or_else(odd)
        };
        let variables = own.parts.iter().map(number).collect::<Result<_, _>>()?;
        let ranks = program.ranks.len();
        Ok(Layouts { own, variables, ward: Layout::of(program, (me + ranks - 1) % ranks) })
    }
}

/// Tells all ranks what each has.
fn report_to_all(exchange: &RankExchange, own: Report) -> Result<Vec<Report>, RunError> {
    let words = exchange.tell_all(REPORT, &own.encode())?;
    let all: Option<Vec<Report>> = words.iter().map(|bytes| Report::decode(bytes)).collect();
    all.ok_or_else(|| RunError::Internal("a rank does not say what state it has".into()))
}

#[cfg(test)]
mod tests {
    use of_plan::{AxisLayout, ElementType, Rank};

    use super::*;

    fn port(name: &str, layout: &[(LayoutKind, u32)]) -> MeshPort {
        let layout = layout.iter().map(|(kind, dim)| AxisLayout { kind: *kind as i32, dim: *dim }).collect();
        let dtype = ElementType::F32 as i32;
        MeshPort { name: name.into(), dims: vec![10, 4], layout, dtype, ..MeshPort::default() }
    }

    /// Four ranks: a variable that all have, one that two ranks each have a half of, and one of which each rank has a part.
    fn program() -> MeshProgram {
        let (b, s) = ((LayoutKind::Broadcast, 0), (LayoutKind::Split, 0));
        let variables = vec![port("all", &[b, b]), port("pairs", &[s, b]), port("parts", &[s, s])];
        MeshProgram { shape: vec![2, 2], ranks: vec![Rank::default(); 4], variables, ..MeshProgram::default() }
    }

    fn report(own: &[u64], kept: &[u64]) -> Report {
        let steps = |steps: &[u64]| [0, 1].map(|at: usize| steps.get(at).copied());
        let notes = [0, 1].map(|at: usize| [own.get(at).copied().unwrap_or(0), 9]);
        Report { own: steps(own), kept: steps(kept), notes, fresh: false, mark: own.len() as u64 }
    }

    #[test]
    fn parts_without_a_replica_come_first() {
        let layout = Layout::of(&program(), 1);
        assert_eq!(layout.parts.iter().map(|part| part.variable).collect::<Vec<_>>(), [2, 0, 1]);
        // 10 rows of 16 bytes: blocks of 5, and parts of 3 and 2.
        assert_eq!(layout.parts.iter().map(|part| part.len).collect::<Vec<_>>(), [2 * 16, 160, 80]);
        assert_eq!((layout.unique, layout.total), (64, 64 + 192 + 128));
    }

    #[test]
    fn ranks_agree_on_the_newest_step_that_all_have_or_get() {
        let program = program();
        let whole = report(&[6, 7], &[6, 7]);
        let step = |reports: &[Report]| match agree(&program, reports) {
            Recovery::Step { step, note, .. } => {
                assert_eq!(note, [step, 9]);
                Ok(step)
            }
            Recovery::Lost(ranks) => Err(ranks),
            Recovery::Begin => panic!("they began"),
        };
        assert_eq!(step(&[whole; 4]), Ok(7));
        // One rank is a step behind, and so is what its keeper has.
        assert_eq!(step(&[whole, whole, report(&[5, 6], &[6, 7]), report(&[6, 7], &[5, 6])]), Ok(6));
        // One rank was lost: its keeper, or its replica, gives it what it had.
        let new = report(&[], &[]);
        for lost in 0..4 {
            let mut reports = [whole; 4];
            reports[lost] = new;
            assert_eq!(step(&reports), Ok(7), "rank {lost}");
            let from = sources(&program, &reports, 7).unwrap();
            let from: Vec<Source> = from[&lost].iter().map(|(_, source)| *source).collect();
            let replica = usize::from(lost == 0);
            let half = lost ^ 1;
            let is = |rank, kept| Source { rank, kept };
            assert_eq!(from, [is((lost + 1) % 4, true), is(replica, false), is(half, false)]);
            // The copy of the last step did not reach the keeper.
            reports[(lost + 1) % 4].kept = [Some(6), None];
            assert_eq!(step(&reports), Ok(6));
        }
        // Two ranks that do not keep each other's state.
        assert_eq!(step(&[new, whole, new, whole]), Ok(7));
        // A rank and its keeper; a variable that two ranks have is gone with both.
        assert_eq!(step(&[whole, new, new, whole]), Err(vec![1]));
        assert_eq!(step(&[new, new, whole, whole]), Err(vec![0, 1]));
        assert_eq!(step(&[new; 4]), Err(vec![0, 1, 2, 3]));
    }

    #[test]
    fn values_that_all_ranks_have_need_no_keeper() {
        let mut program = program();
        program.variables.truncate(1);
        let (whole, new) = (report(&[7], &[7]), report(&[], &[]));
        let recovery = agree(&program, &[new, new, new, whole]);
        assert_eq!(recovery, Recovery::Step { step: 7, note: [7, 9], mark: 1 });
        let fresh = Report { fresh: true, ..new };
        assert_eq!(agree(&program, &[new, fresh, fresh, fresh]), Recovery::Begin);
        // One rank has finished the first copy, and another one has not: the copy is the beginning as well.
        assert_eq!(agree(&program, &[new, fresh, new, whole]), recovery);
    }

    #[test]
    fn reports_are_read_as_they_were_written() {
        let report = Report { fresh: true, mark: 3, ..report(&[4, 0], &[9]) };
        assert_eq!(Report::decode(&report.encode()), Some(report));
        assert_eq!(Report::decode(&report.encode()[1..]), None);
    }

    #[test]
    fn the_older_copy_is_replaced() {
        let version = |step| Version { step, ..Version::default() };
        assert_eq!(place(&[version(Some(3)), version(Some(4))], 5), 0);
        assert_eq!(place(&[version(Some(5)), version(Some(4))], 6), 1);
        assert_eq!(place(&[version(Some(5)), version(Some(4))], 5), 0);
        assert_eq!(place(&[version(Some(5)), version(None)], 6), 1);
        assert_eq!(place(&[version(None), version(None)], 0), 0);
    }
}
