//! Opens plans for a server that has no compiler.

use std::path::{Path, PathBuf};

use of_plan::PlanFile;
use of_serving::{Ensemble, Opener};
use of_signature::RequiredSignature;

/// Opens plans: signed ones only, if there is a key.
pub fn opener(key: Option<PathBuf>) -> Opener {
    let open = move |path: &Path| match &key {
        _ if path.extension().is_none_or(|e| e != "plan") => {
            let what = format!("'{}' is no plan, and this server has no compiler", path.display());
            Err(format!("{what}; compile the model with 'of-opt compile', or serve it with 'of-opt serve'"))
        }
        Some(key) => open_signed(path, key),
        None => PlanFile::open(path).map_err(|e| format!("{}: {e}", path.display())),
    };
    let open_ensemble = |ensemble: &Ensemble| {
        let what = format!("the ensemble '{}' is compiled when it is loaded", ensemble.name.escape_debug());
        Err(format!("{what}, and this server has no compiler; serve it with 'of-opt serve'"))
    };
    Opener { open: Box::new(open), open_ensemble: Box::new(open_ensemble), loaders: Vec::new() }
}

/// Opens a plan if the holder of a key signed it; the signature is in `PLAN.sig`.
///
/// # Errors
/// When a file cannot be read, it is no plan, the signature is refused, or the plan is damaged.
pub fn open_signed(path: &Path, key: &Path) -> Result<PlanFile, String> {
    if path.extension().is_none_or(|e| e != "plan") {
        let what = format!("'{}' is no plan, and --require-signature serves signed plans only", path.display());
        return Err(format!("{what}; compile the model and sign its plan"));
    }
    let required = RequiredSignature::read(path, None, key).map_err(|e| e.to_string())?;
    let opened = PlanFile::open_checked(path, |bytes| required.check(bytes));
    opened.map_err(|e| format!("{}: {e}", path.display()))?.map_err(|e| {
        let file = required.signature().display();
        format!("the signature '{file}' of '{}' is refused: {e}", path.display())
    })
}
