//! Runs every `tests/lit/<area>/*.of`. `OF_LIT_FILTER=text` runs those whose path holds the text.

use std::path::Path;

use of_lit::suite::{self, Outcome};
use of_test_support::component::require;

#[test]
fn every_lit_test_passes() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let filter = std::env::var("OF_LIT_FILTER").unwrap_or_default();
    let mut files = suite::find(root).expect("the tests can be listed");
    files.retain(|f| f.to_string_lossy().contains(&filter));
    assert!(!files.is_empty(), "no test's path holds '{filter}'");
    let of_opt = suite::of_opt().unwrap_or_else(|why| panic!("{why}"));
    let temp = tempfile::tempdir().expect("a temporary folder");
    let mut failed = 0;
    for (file, outcome) in files.iter().zip(suite::run_all(&files, &of_opt, temp.path())) {
        let name = file.strip_prefix(root).unwrap_or(file).display();
        match outcome {
            Outcome::Passed => println!("ok      {name}"),
            Outcome::Skipped(component) => {
                require(component, Err::<(), _>(format!("{name} needs it in PATH")));
            }
            Outcome::Failed(why) => {
                failed += 1;
                println!("FAILED  {name}\n{why}\n");
            }
        }
    }
    assert_eq!(failed, 0, "{failed} of {} lit tests failed", files.len());
}
