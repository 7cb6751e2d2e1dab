//! What is printed reads back: for random modules, in both forms, with and without locations.

use super::{module, random, show};
use crate::text::{PrintOptions, print_module};

const MODULES: u64 = 300;

#[test]
fn both_forms_read_back() {
    for seed in 0..MODULES {
        let m = random::module(seed);
        for (generic, locations) in [(false, false), (false, true), (true, false), (true, true)] {
            let options = PrintOptions { generic, locations, ..PrintOptions::default() };
            let text = print_module(&m, &options);
            assert_eq!(print_module(&module(&text), &options), text, "seed {seed}");
        }
    }
}

#[test]
fn generic_and_pretty_forms_convert() {
    for seed in 0..MODULES {
        let m = random::module(seed);
        let (pretty, generic) = (show(&m, false), show(&m, true));
        assert_eq!(show(&module(&pretty), true), generic, "seed {seed}");
        assert_eq!(show(&module(&generic), false), pretty, "seed {seed}");
    }
}

#[test]
fn ops_without_location_get_that_of_their_text() {
    let m = module("func @main(%x: tensor<f32>) -> (tensor<f32>) {\n  %y = t.same %x\n  t.return %y\n}\n");
    let f = m.main().unwrap();
    let locs: Vec<String> = f.graph.walk().into_iter().map(|o| f.graph.op(o).loc.to_string()).collect();
    assert_eq!(locs, ["t.of:2:8", "t.of:3:3"]);
    assert_eq!(f.loc.to_string(), "t.of:1:1");
}
