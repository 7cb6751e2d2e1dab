//! A browser without a window that shows one page.
//!
//! Chromium's `--dump-dom` prints a page when its clock of virtual time runs out, which a page that compiles WebAssembly can
//! miss. Here the page is asked over the DevTools protocol until it shows what is expected.
//!
//! Source: <https://chromedevtools.github.io/devtools-protocol/>; messages over `--remote-debugging-pipe` end with a zero byte.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The names of browsers without a window.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "headless_shell"];
/// A page must show what is expected within this time, on a machine that is busy with a build, too.
const LIMIT: Duration = Duration::from_secs(120);
/// Between two questions.
const PAUSE: Duration = Duration::from_millis(50);

/// The first browser that runs.
///
/// # Errors
/// The names that were tried.
pub fn installed() -> Result<&'static str, String> {
    let runs =
        |browser: &&str| Command::new(browser).arg("--version").output().is_ok_and(|version| version.status.success());
    BROWSERS.into_iter().find(runs).ok_or_else(|| format!("none of {BROWSERS:?} runs"))
}

/// Opens `url` in `browser`, and returns the document's HTML as soon as it has all of `expected`.
///
/// # Errors
/// When the browser does not start, ends, or the document lacks one of `expected` after two minutes.
pub fn shown(browser: &str, url: &str, expected: &[&str]) -> Result<String, String> {
    let profile = tempfile::tempdir().map_err(|e| e.to_string())?;
    let mut page = Page::start(browser, profile.path()).map_err(|e| format!("{browser}: {e}"))?;
    let shown = page.open(url).and_then(|session| page.shows(&session, expected));
    page.close();
    // The browser writes to its errors what its pages do not explain.
    let said = || fs::read_to_string(profile.path().join("stderr")).unwrap_or_default();
    shown.map_err(|e| format!("{browser}: {url}: {e}\n{}", said()))
}

/// A browser, and the two ends of its pipe.
struct Page {
    process: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    id: u64,
    end: Instant,
}

impl Page {
    fn start(browser: &str, profile: &Path) -> std::io::Result<Page> {
        // The pipe is at descriptors 3 and 4.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", browser]);
        shell.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
        ]);
        shell.args(["--disable-component-update", "--disable-sync", "--remote-debugging-pipe"]);
        shell.arg(format!("--user-data-dir={}", profile.display())).arg("about:blank");
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(fs::File::create(profile.join("stderr"))?);
        let mut process = shell.spawn()?;
        let (Some(to), Some(out)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both are piped")
        };
        let (sender, from) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(out).split(0).map_while(Result::ok) {
                let Ok(message) = serde_json::from_slice(&message) else { return };
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        Ok(Page { process, to, from, id: 0, end: Instant::now() + LIMIT })
    }

    /// The result of a command. `session` is of a tab, or empty for the browser.
    fn ask(&mut self, session: &str, method: &str, parameters: &Value) -> Result<Value, String> {
        self.id += 1;
        let mut message = json!({"id": self.id, "method": method, "params": parameters});
        if !session.is_empty() {
            message["sessionId"] = session.into();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).map_err(|e| format!("{method}: {e}"))?;
        loop {
            let left = self.end.saturating_duration_since(Instant::now());
            let answer = self.from.recv_timeout(left).map_err(|e| format!("{method}: no answer ({e})"))?;
            // Messages without a number are events.
            if answer["id"] == self.id {
                let result = &answer["result"];
                return if result.is_object() { Ok(result.clone()) } else { Err(format!("{method}: {answer}")) };
            }
        }
    }

    /// Opens a tab, and returns its session.
    fn open(&mut self, url: &str) -> Result<String, String> {
        let tab = self.ask("", "Target.createTarget", &json!({"url": url}))?;
        let tab = json!({"targetId": tab["targetId"], "flatten": true});
        let session = self.ask("", "Target.attachToTarget", &tab)?;
        session["sessionId"].as_str().map(str::to_owned).ok_or_else(|| format!("no session in {session}"))
    }

    /// Waits until the document of a tab has all of `expected`.
    fn shows(&mut self, session: &str, expected: &[&str]) -> Result<String, String> {
        let document = json!({"expression": "document.documentElement.outerHTML"});
        loop {
            let answer = self.ask(session, "Runtime.evaluate", &document)?;
            let html = answer["result"]["value"].as_str().unwrap_or_default();
            let Some(lacks) = expected.iter().find(|text| !html.contains(**text)) else { return Ok(html.to_owned()) };
            if Instant::now() + PAUSE > self.end {
                // Long lines are files within the page.
                let lines: Vec<&str> = html.lines().filter(|line| line.len() < 300).collect();
                return Err(format!("the document lacks {lacks:?}:\n{}", lines.join("\n")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ends the browser. Its profile can be removed after that.
    fn close(mut self) {
        self.end = self.end.max(Instant::now() + Duration::from_secs(10));
        // The browser ends its pipe in any case.
        if self.ask("", "Browser.close", &json!({})).is_err() {
            let _killed = self.process.kill();
        }
        let _status = self.process.wait();
    }
}
