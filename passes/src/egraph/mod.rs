//! E-graphs over ops: saturation with rewrite rules, and extraction of the cheapest expressions.
//!
//! A segment of a function ([`segment`]) becomes an e-graph ([`graph`], [`language`]) whose e-classes hold equal
//! expressions. [`saturate`] applies the rules of [`crate::rules`], and [`extract`] and `exact` choose one e-node per
//! class by the cost model ([`cost`]). The location of every new op names the rules that made it and their sources
//! ([`provenance`]).
//!
//! The e-graph is egg's: union-find, hash-consing, rebuilding and analysis. egg's `Pattern`, `Rewrite`, `Runner` and
//! `Extractor` are not used, for these reasons:
//!
//! - 40 of the 88 rules are functions. Most of them compute attributes or shapes: permutations, pads, slice bounds,
//!   filters enlarged by zeros. Others relate several e-classes at once, such as all products of one matrix. egg's
//!   `Pattern` binds e-classes only, so these rules need code in any case. The other 48 are equations as text
//!   ([`pattern`], 200 lines), which also match commuted operands, shapes and element types.
//! - Adding an e-node can fail: inference may reject the operands or not know the shape. egg's `Analysis::make` cannot
//!   refuse an e-node, and its `Pattern` applier adds nodes without such a check.
//! - Every e-node carries the locations of the e-nodes that its rule matched. egg's explanations prove equalities of
//!   terms but keep no such data per e-node.
//! - Extraction has DAG cost, fuses an activation into its producer, keeps several alternatives per class, and returns
//!   a lower bound. egg's `Extractor` has tree cost, and its `LpExtractor` needs the C library CBC.
//! - With those replaced, egg's `Runner` would only be the loop of [`saturate`]. Its match limit with growing bans is
//!   that of egg's `BackoffScheduler`.
//!
//! Sources: Willsey et al., "egg: Fast and Extensible Equality Saturation" (2021); Yang et al., "Equality Saturation
//! for Tensor Graph Superoptimization" (2021), from which the multi-pattern merges are.

pub mod cost;
mod exact;
pub mod extract;
pub mod graph;
pub mod language;
pub mod pattern;
pub mod provenance;
pub mod rule;
pub mod saturate;
pub mod segment;
pub mod view;
