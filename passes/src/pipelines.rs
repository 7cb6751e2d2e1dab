//! The named pipelines, each as the text that `--passes=` takes.
//!
//! Each pass pipeline has a name and is listed here.

/// A named pipeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pipeline {
    /// Name, usable where the name of a pass is.
    pub name: &'static str,
    /// Passes and other pipelines.
    pub text: &'static str,
    /// One line.
    pub summary: &'static str,
}

/// The pipeline that prepares a function for the CPU code generator.
pub const CPU_PIPELINE: &str = "cpu";
/// The pipeline that leaves primitives and structural ops only.
pub const PRIMITIVES_PIPELINE: &str = "primitives";
/// The pipeline that prepares a function for the sharding search.
pub const SHARDING_PIPELINE: &str = "sharding";
/// The pipeline between `optimize` and the sharding search: the composites that `optimize` matches are expanded.
pub const SHARDING_AFTER_OPTIMIZE_PIPELINE: &str = "sharding-after-optimize";

/// All pipelines.
pub const PIPELINES: &[Pipeline] = &[
    Pipeline {
        name: "simplify",
        text: "fold-constants,infer-shapes,differentiate,fold-constants,infer-shapes,canonicalize,fold-constants,canonicalize,cse,dce",
        summary: "what helps on every target and changes no result",
    },
    Pipeline {
        name: PRIMITIVES_PIPELINE,
        text: "simplify,expand-composites,simplify",
        summary: "nothing but primitives and structure, for backends that know no composite",
    },
    Pipeline {
        name: CPU_PIPELINE,
        text: "quantize-contractions,primitives,legalize-float16,scan-to-loop,loop-append-to-scan-output,bind-shape-symbols,channels-last,simplify",
        summary: "what the CPU code generator takes",
    },
    Pipeline {
        name: SHARDING_PIPELINE,
        text: "fold-constants,infer-shapes,unflatten-rows,differentiate,fold-constants,infer-shapes,canonicalize,expand-composites{keep=[of.alternatives, of.adam, of.adagrad, of.momentum]},fold-constants,canonicalize,cse,dce",
        summary: "what the sharding search takes: primitives, alternatives, and whole updates of parameters",
    },
    Pipeline {
        name: SHARDING_AFTER_OPTIMIZE_PIPELINE,
        text: "expand-composites{keep=[of.alternatives, of.adam, of.adagrad, of.momentum]},fold-constants,dce",
        summary: "what the sharding search takes after 'optimize'",
    },
];

/// The pipeline called `name`.
pub fn pipeline(name: &str) -> Option<&'static Pipeline> {
    PIPELINES.iter().find(|p| p.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Manager;

    #[test]
    fn every_pipeline_parses() {
        for p in PIPELINES {
            assert!(!p.summary.is_empty());
            Manager::parse(p.name).unwrap_or_else(|e| panic!("{}: {e}", p.name));
        }
    }
}
