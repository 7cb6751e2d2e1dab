//! Downloads of files over HTTP, kept in a folder: they go on where they stopped, and are compared with their hash.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, IF_RANGE, LAST_MODIFIED, RANGE};
use reqwest::{Client, Response, StatusCode};
use sha2::{Digest, Sha256};

use crate::{CONNECT, STALL, install_tls};

/// How often a connection that breaks is made again, without a byte in between.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(200);

/// What the fragment of a URL begins with that has the hash of the file, as in pip's links.
const HASH: &str = "sha256=";

/// Whether a text is the URL of a file that can be downloaded.
pub fn is_url(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

/// A file to download.
#[derive(Debug)]
pub struct Download {
    url: String,
    sha256: Option<String>,
    /// Where it gets to.
    path: PathBuf,
}

/// What is reported of a download that is under way: bytes that are there, and how many there will be.
pub type OnProgress<'p> = &'p mut dyn FnMut(u64, Option<u64>);

impl Download {
    /// The file at `https://HOST/PATH/NAME`, perhaps with the hash behind it, `#sha256=HEX`, which is kept in a folder under its name.
    ///
    /// # Errors
    /// When the URL names no file, or the hash is none.
    pub fn new(url: &str, folder: &Path) -> Result<Download, String> {
        let (address, fragment) = url.split_once('#').map_or((url, None), |(url, fragment)| (url, Some(fragment)));
        let sha256 = match fragment.map(|fragment| fragment.strip_prefix(HASH)) {
            None => None,
            Some(Some(hash)) if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
                Some(hash.to_ascii_lowercase())
            }
            Some(_) => return Err(format!("'{url}' has no hash behind '#': write #sha256= and 64 hexadecimal digits")),
        };
        let parsed = reqwest::Url::parse(address).map_err(|e| format!("'{url}' is no URL: {e}"))?;
        let name = parsed.path_segments().and_then(|mut parts| parts.next_back()).unwrap_or_default();
        if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
            return Err(format!("'{url}' names no file"));
        }
        let path = folder.join(&hex(&Sha256::digest(address))[..16]).join(name);
        Ok(Download { url: address.into(), sha256, path })
    }

    /// Downloads the file, unless it is there with its hash, and gives its path. Other processes wait for one that does. Without a hash
    /// a file that is there is taken as it is.
    ///
    /// # Errors
    /// When the server does not answer or refuses, the file cannot be written, or has another hash.
    pub fn fetch(&self, on_progress: OnProgress<'_>) -> Result<PathBuf, String> {
        let failed = |e: io::Error| format!("'{}' cannot be written: {e}", self.path.display());
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new("."))).map_err(failed)?;
        let lock = File::create(self.next_to(".lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        if self.path.exists() {
            match &self.sha256 {
                Some(known) if hash_of(&self.path).map_err(failed)? != *known => {}
                _ => return Ok(self.path.clone()),
            }
        }
        install_tls();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| format!("no threads for '{}': {e}", self.url))?;
        runtime.block_on(self.transfer(on_progress))?;
        let part = self.next_to(".part");
        let hash = hash_of(&part).map_err(failed)?;
        if let Some(known) = self.sha256.as_ref().filter(|known| **known != hash) {
            // Another attempt must not go on with these bytes.
            let _ = fs::remove_file(&part);
            return Err(format!("'{}' has the SHA-256 {hash} and not {known}", self.url));
        }
        fs::rename(&part, &self.path).map_err(failed)?;
        // What a broken download would go on with is of no use any more.
        let _ = fs::remove_file(self.next_to(".version"));
        Ok(self.path.clone())
    }

    /// A file next to the one that is downloaded.
    fn next_to(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    async fn transfer(&self, on_progress: OnProgress<'_>) -> Result<(), String> {
        let client = Client::builder().connect_timeout(CONNECT).read_timeout(STALL).build();
        let client = client.map_err(|e| format!("'{}' cannot be read: {}", self.url, causes(&e)))?;
        let (mut failures, mut pause) = (0, FIRST_PAUSE);
        loop {
            let before = self.received();
            match self.attempt(&client, on_progress).await {
                Ok(()) => return Ok(()),
                Err(Failure::Final(why)) => return Err(why),
                Err(Failure::Broken(why)) => {
                    if self.received() > before {
                        (failures, pause) = (0, FIRST_PAUSE);
                    }
                    failures += 1;
                    if failures == ATTEMPTS {
                        return Err(why);
                    }
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                }
            }
        }
    }

    /// Bytes that are there.
    fn received(&self) -> u64 {
        fs::metadata(self.next_to(".part")).map_or(0, |part| part.len())
    }

    /// Downloads what is not there yet.
    async fn attempt(&self, client: &Client, on_progress: OnProgress<'_>) -> Result<(), Failure> {
        let broken = |e: reqwest::Error| Failure::Broken(format!("'{}' cannot be read: {}", self.url, causes(&e)));
        let failed = |e: io::Error| Failure::Final(format!("'{}' cannot be written: {e}", self.path.display()));
        let (part, version) = (self.next_to(".part"), self.next_to(".version"));
        let mut request = client.get(&self.url);
        // A server that has another version of the file by now sends it whole.
        let known = fs::read_to_string(&version).unwrap_or_default();
        if self.received() > 0 && !known.is_empty() {
            request = request.header(RANGE, format!("bytes={}-", self.received())).header(IF_RANGE, known);
        }
        let mut answer = request.send().await.map_err(broken)?;
        let start = match answer.status() {
            StatusCode::PARTIAL_CONTENT => first_byte(&answer).filter(|start| *start == self.received()),
            StatusCode::OK => Some(0),
            StatusCode::RANGE_NOT_SATISFIABLE => None,
            status if status.is_server_error() => return Err(Failure::Broken(self.refused(status))),
            status => return Err(Failure::Final(self.refused(status))),
        };
        let Some(start) = start else {
            fs::remove_file(&part).map_err(failed)?;
            return Err(Failure::Broken(self.refused(answer.status())));
        };
        fs::write(&version, version_of(answer.headers())).map_err(failed)?;
        let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(&part).map_err(failed)?;
        file.set_len(start).and_then(|()| file.seek(io::SeekFrom::End(0))).map_err(failed)?;
        let whole = answer.content_length().map(|rest| start + rest);
        let mut received = start;
        while let Some(bytes) = answer.chunk().await.map_err(broken)? {
            file.write_all(&bytes).map_err(failed)?;
            received += bytes.len() as u64;
            on_progress(received, whole);
        }
        Ok(())
    }

    fn refused(&self, status: StatusCode) -> String {
        format!("'{}' cannot be read: the server answers {status}", self.url)
    }
}

/// Why an attempt ended.
enum Failure {
    /// Another attempt may go on.
    Broken(String),
    Final(String),
}

/// The first byte of a part of a file.
fn first_byte(answer: &Response) -> Option<u64> {
    let range = answer.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    range.strip_prefix("bytes ")?.split('-').next()?.parse().ok()
}

/// What tells a version of a file from others: a strong tag, or a date.
fn version_of(headers: &HeaderMap) -> &str {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    text(ETAG).filter(|tag| !tag.starts_with("W/")).or_else(|| text(LAST_MODIFIED)).unwrap_or_default()
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn hash_of(path: &Path) -> io::Result<String> {
    let (mut file, mut hasher, mut buffer) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hex(&hasher.finalize()));
        }
        hasher.update(&buffer[..n]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// What a server does with a request.
    #[derive(Clone, Copy)]
    enum Answer {
        /// The file, or the part that is asked for, but at most so many bytes before the connection ends.
        File(usize),
        /// Another version of the file.
        Newer,
        Status(&'static str),
    }

    fn file() -> Vec<u8> {
        (0..100_000u32).flat_map(u32::to_le_bytes).collect()
    }

    fn newer() -> Vec<u8> {
        vec![7; 5000]
    }

    /// A server that gives these answers, one connection each. Returns its address, and the ranges that it was asked for.
    fn serve(answers: &[Answer]) -> (String, Receiver<Option<usize>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (url, answers) = (format!("http://{}/data/train.npz", listener.local_addr().unwrap()), answers.to_vec());
        let (asked, ranges) = channel();
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let range = range_of(&stream);
                // Some tests do not look at them.
                let _ = asked.send(range);
                // A client that has gone away is what some tests want.
                let _ = reply(&mut stream, answer, range);
            }
        });
        (url, ranges)
    }

    fn range_of(stream: &TcpStream) -> Option<usize> {
        let lines = BufReader::new(stream).lines().map(|line| line.unwrap().to_ascii_lowercase());
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        let range = lines.iter().find_map(|line| line.strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok());
        range.filter(|_| lines.iter().any(|line| line == "if-range: \"one\""))
    }

    fn reply(stream: &mut TcpStream, answer: Answer, range: Option<usize>) -> io::Result<()> {
        let (whole, tag, most) = match answer {
            Answer::Status(status) => {
                return write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
            Answer::File(most) => (file(), "one", most),
            Answer::Newer => (newer(), "two", usize::MAX),
        };
        let start = range.filter(|_| tag == "one").unwrap_or(0);
        let status = match start {
            0 => "200 OK".to_owned(),
            _ => format!("206 Partial Content\r\ncontent-range: bytes {start}-{}/{}", whole.len() - 1, whole.len()),
        };
        let rest = &whole[start..];
        write!(stream, "HTTP/1.1 {status}\r\netag: \"{tag}\"\r\ncontent-length: {}\r\n\r\n", rest.len())?;
        stream.write_all(&rest[..rest.len().min(most)])
    }

    fn sha256(bytes: &[u8]) -> String {
        hex(&Sha256::digest(bytes))
    }

    fn fetch(url: &str, folder: &Path) -> Result<Vec<u8>, String> {
        let path = Download::new(url, folder)?.fetch(&mut |_, _| ())?;
        assert!(path.ends_with("train.npz"));
        Ok(fs::read(path).unwrap())
    }

    #[test]
    fn a_download_goes_on_where_it_stopped_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (url, ranges) = serve(&[Answer::File(1000), Answer::File(70_000), Answer::File(usize::MAX)]);
        let url = format!("{url}#sha256={}", sha256(&file()));
        let mut last = (0, None);
        let path = Download::new(&url, dir.path()).unwrap().fetch(&mut |n, all| last = (n, all)).unwrap();
        assert!(fs::read(path).unwrap() == file());
        assert_eq!(last, (400_000, Some(400_000)));
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [None, Some(1000), Some(71_000)]);
        // The server has gone.
        assert!(fetch(&url, dir.path()).unwrap() == file());
    }

    #[test]
    fn a_file_that_changed_is_downloaded_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (url, ranges) = serve(&[Answer::File(1000), Answer::Newer]);
        assert!(fetch(&url, dir.path()).unwrap() == newer());
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [None, Some(1000)]);
    }

    #[test]
    fn another_hash_is_an_error_and_the_right_one_replaces_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (url, _) = serve(&[Answer::File(usize::MAX), Answer::Newer, Answer::File(usize::MAX)]);
        let with = |hash: &str| format!("{url}#sha256={hash}");
        let wrong = "0".repeat(64);
        let error = fetch(&with(&wrong), dir.path()).unwrap_err();
        assert_eq!(error, format!("'{url}' has the SHA-256 {} and not {wrong}", sha256(&file())));
        assert!(fetch(&url, dir.path()).unwrap() == newer());
        assert!(fetch(&with(&sha256(&file()).to_uppercase()), dir.path()).unwrap() == file());
    }

    #[test]
    fn servers_that_refuse_or_do_not_answer_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let (url, _) = serve(&[Answer::Status("404 Not Found")]);
        assert!(fetch(&url, dir.path()).unwrap_err().contains("the server answers 404 Not Found"));
        let (url, _) = serve(&[Answer::Status("503 Service Unavailable"), Answer::File(usize::MAX)]);
        assert!(fetch(&url, dir.path()).unwrap() == file());
        for (url, words) in [
            ("http://127.0.0.1:1/a.npz", "cannot be read"),
            ("http://127.0.0.1:1/", "names no file"),
            ("http://", "is no URL"),
            ("http://127.0.0.1:1/a.npz#md5=1", "write #sha256="),
        ] {
            assert!(fetch(url, dir.path()).unwrap_err().contains(words), "{url}");
        }
    }
}
