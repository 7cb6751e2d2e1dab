//! What the parameters of `of-opt train` begin with: values of another file, and a new last layer.

use of_diag::{Code, Diagnostics};
use of_driver::training::reset_head;
use of_driver::zoo::ZooModel;
use of_driver::{Model, error};

use super::train::Train;
use crate::console::Console;
use crate::downloads::local_files;

/// Does what --weights and --reset-head say. Returns lines that say what was done.
///
/// # Errors
/// When the file does not fit the model, or its last layer cannot be replaced.
pub fn prepare(
    c: &Train,
    zoo: Option<&ZooModel>,
    model: &mut Model,
    console: &Console,
) -> Result<Vec<String>, Diagnostics> {
    let mut done = Vec::new();
    if let Some(file) = &c.weights {
        let local = local_files(&[file.into()], console)?;
        let path = local.first().map_or(file.as_path(), |path| path.as_ref());
        let loaded = model.load_weights(path, &c.weights_ignore, zoo, console)?;
        let mut line = format!("{}: {} loaded", file.display(), parameters(loaded.loaded));
        if !loaded.kept.is_empty() {
            let begin = if zoo.is_some() { "newly initialised" } else { "as in the model" };
            line += &format!(", {} {begin} ({})", loaded.kept.len(), listed(&loaded.kept));
        }
        if loaded.unused > 0 {
            line += &format!("; {} of its tensors are no parameters of the model", loaded.unused);
        }
        done.push(line);
    }
    if let Some(scores) = c.reset_head {
        if let Some(zoo) = zoo {
            let what = "--reset-head is for models of files; those of the zoo are built with as many scores as needed";
            let hint = format!(
                "zoo:{}:classes={scores} has them, and --weights-ignore leaves the last layer out of --weights",
                zoo.spec.model.name
            );
            return Err(error(Code::INPUT, what).hint(hint).into());
        }
        let head = reset_head(&mut model.module, c.loss_of.as_deref(), scores, c.seed)?;
        let layer: Vec<String> = std::iter::once(head.weight).chain(head.bias).collect();
        done.push(format!(
            "the last layer is newly initialised ({}): {scores} scores in the place of {}",
            layer.join(", "),
            head.scores
        ));
    }
    Ok(done)
}

fn parameters(n: usize) -> String {
    if n == 1 { "1 parameter".into() } else { format!("{n} parameters") }
}

/// Names for a message; of many, the first.
fn listed(names: &[String]) -> String {
    const MOST: usize = 6;
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    format!("{}{more}", names[..names.len().min(MOST)].join(", "))
}
