//! Every pipeline, as the text that `--passes=` takes.

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

/// All of them.
pub const PIPELINES: &[Pipeline] = &[
    Pipeline {
        name: "simplify",
        text: "fold-constants,infer-shapes,differentiate,fold-constants,infer-shapes,canonicalize,fold-constants,canonicalize,cse,dce",
        summary: "what helps on every target and changes no result",
    },
    Pipeline {
        name: "primitives",
        text: "simplify,expand-composites,simplify",
        summary: "nothing but primitives and structure, for backends that know no composite",
    },
    Pipeline {
        name: "cpu",
        text: "quantize-contractions,primitives,widen-floats,scan-to-loop,stack-appends,bind-shape-symbols,channels-last,simplify",
        summary: "what the CPU code generator takes",
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
