//! `docs/stablehlo.md` lists the operations as they are now. `INSTA_UPDATE=always` writes the list anew.

use std::fmt::Write;
use std::path::Path;

#[test]
fn page_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/stablehlo.md");
    let kept = std::fs::read_to_string(&path).unwrap();
    let (before, _) = kept.split_once("--test page` -->\n").expect("the page has its comment");
    let mut now = format!("{before}--test page` -->\n\n| operation | supported |\n|---|---|\n");
    for o in of_stablehlo::operations() {
        let what = match (o.refused, o.note) {
            (Some(reason), _) => format!("no: {reason}"),
            (None, "") => "yes".into(),
            (None, note) => format!("yes: {note}"),
        };
        writeln!(now, "| `{}` | {what} |", o.name).unwrap();
    }
    if std::env::var_os("INSTA_UPDATE").is_some_and(|v| v == "always") {
        std::fs::write(&path, &now).unwrap();
        return;
    }
    assert!(
        now == kept,
        "docs/stablehlo.md is not current: INSTA_UPDATE=always cargo test -p of-stablehlo --test page"
    );
}
