//! The file of hosts: which ranks of a job run where, on which devices, with how many threads.

use std::net::{Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use of_cli::quantity;
use of_diag::{Code, Diagnostics};
use of_driver::{error, io_error};
use serde::Deserialize;

/// The port of the rendezvous where a file gives none.
const PORT: u16 = 29400;

/// The hosts of a job.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// The port of the rendezvous, on the first host.
    #[serde(default)]
    pub port: Port,
    /// The ports at which ranks listen for one another, on each host; the system chooses where there are none.
    pub ports: Option<Ports>,
    /// The identity of each host for encrypted connections.
    pub tls: Option<TlsSection>,
    /// Its hosts. Ranks are numbered in their order.
    #[serde(rename = "host")]
    pub hosts: Vec<Host>,
}

/// A host.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// The name or address under which the other hosts reach it.
    pub address: Address,
    /// What `--host` and messages call it; the address where there is none.
    pub name: Option<String>,
    /// How many ranks run there.
    pub ranks: u32,
    /// Worker threads of each rank.
    pub threads: Option<usize>,
    /// The memory budget of each rank, where the command line has no `--memory`.
    pub memory: Option<Memory>,
    /// CUDA devices, one for each rank.
    #[serde(default)]
    pub devices: Vec<u32>,
}

/// The port of the rendezvous.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "u16")]
pub struct Port(pub u16);

impl Default for Port {
    fn default() -> Port {
        Port(PORT)
    }
}

impl TryFrom<u16> for Port {
    type Error = String;

    fn try_from(port: u16) -> Result<Port, String> {
        match port {
            0 => Err(format!("port 0 is none at which other hosts can connect\ngive a free port, such as {PORT}")),
            port => Ok(Port(port)),
        }
    }
}

/// The name of a host, or its IP address without brackets.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Address(pub String);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Address, String> {
        const HINT: &str = "give a name or an IP address, such as node1, 10.0.0.7 or ::1";
        if text.trim().is_empty() {
            return Err(format!("the address is empty\n{HINT}"));
        }
        // A zone, as in fe80::1%2, is the system's to judge.
        let is_ipv6 = |text: &str| text.split('%').next().is_some_and(|ip| ip.parse::<Ipv6Addr>().is_ok());
        if let Some(inside) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            return match is_ipv6(inside) {
                true => Ok(Address(inside.to_owned())),
                false => Err(format!("'{text}' is no IPv6 address in brackets\n{HINT}")),
            };
        }
        if is_ipv6(&text) {
            return Ok(Address(text));
        }
        let (host, port) = text.rsplit_once(':').unwrap_or((&text, ""));
        let is_host = !host.contains([':', '[', ']']) || (host.starts_with('[') && host.ends_with(']'));
        if !host.is_empty() && is_host && port.parse::<u16>().is_ok() {
            let hint = format!("give '{host}' alone: the port of the rendezvous is `port`, above the hosts");
            return Err(format!("the address '{text}' has a port\n{hint}"));
        }
        match text.contains(|c: char| c.is_whitespace() || ":/[]".contains(c)) {
            true => Err(format!("'{text}' is no address of a host\n{HINT}")),
            false => Ok(Address(text)),
        }
    }
}

/// A range of ports, such as `29500-29600`.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Ports(pub RangeInclusive<u16>);

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Ports, String> {
        let (first, last) = text.split_once('-').unwrap_or((&text, &text));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Ports(first..=last)),
            _ => Err(format!("'{text}' is no range of ports, such as 29500-29600")),
        }
    }
}

/// A size, such as `4GiB`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Memory(pub u64);

impl TryFrom<String> for Memory {
    type Error = String;

    fn try_from(text: String) -> Result<Memory, String> {
        quantity::size(&text).map(Memory).map_err(|what| format!("'{text}': {what}"))
    }
}

/// Files in PEM, on every host under the same path. Those of a relative path are next to the file of hosts.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct TlsSection {
    /// Certificates that sign those of all hosts.
    pub ca: PathBuf,
    /// The host's certificates, its own first. Their names include the host's address.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Host {
    /// What messages call it.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.address.0)
    }

    /// Whether it is this machine: its address can be listened at.
    fn is_here(&self) -> bool {
        let addresses = (self.address.0.as_str(), 0).to_socket_addrs();
        addresses.is_ok_and(|mut all| all.any(|address| TcpListener::bind(address).is_ok()))
    }
}

impl Hosts {
    /// Reads a file.
    ///
    /// # Errors
    /// When it cannot be read, or is no description of hosts.
    pub fn read(path: &Path) -> Result<Hosts, Diagnostics> {
        let text = std::fs::read_to_string(path).map_err(|e| io_error(path, "read", &e))?;
        // A second line is a hint.
        let wrong = |what: String| {
            let (what, hint) = what.split_once('\n').map_or((what.as_str(), None), |(what, hint)| (what, Some(hint)));
            let error = error(Code::INPUT, format!("'{}': {what}", path.display()));
            Diagnostics::from(hint.map_or_else(|| error.clone(), |hint| error.clone().hint(hint)))
        };
        let mut hosts: Hosts = toml::from_str(&text).map_err(|e| {
            let line = e.span().map(|at| text[..at.start.min(text.len())].lines().count().max(1));
            wrong(line.map_or(String::new(), |line| format!("line {line}: ")) + e.message())
        })?;
        hosts.check().map_err(wrong)?;
        if let (Some(TlsSection { ca, certificate, key }), Some(folder)) = (&mut hosts.tls, path.parent()) {
            [ca, certificate, key].into_iter().for_each(|file| *file = folder.join(&*file));
        }
        Ok(hosts)
    }

    fn check(&self) -> Result<(), String> {
        for (i, host) in self.hosts.iter().enumerate() {
            let name = host.name();
            if host.ranks == 0 {
                return Err(format!("host '{name}' has no ranks"));
            }
            if !host.devices.is_empty() && host.devices.len() != host.ranks as usize {
                let (devices, ranks) = (host.devices.len(), host.ranks);
                return Err(format!("host '{name}' has {devices} devices for {ranks} ranks: one for each is needed"));
            }
            if host.threads == Some(0) {
                return Err(format!("host '{name}' gives its ranks 0 threads"));
            }
            if let Some(Ports(ports)) =
                self.ports.as_ref().filter(|ports| (ports.0.len() as u64) < u64::from(host.ranks))
            {
                let (first, last) = (ports.start(), ports.end());
                return Err(format!("ports {first}-{last} are fewer than the {} ranks of host '{name}'", host.ranks));
            }
            if self.hosts[..i].iter().any(|other| other.name() == name) {
                return Err(format!("two hosts are called '{name}'"));
            }
        }
        if self.hosts.is_empty() { Err("it has no [[host]]".into()) } else { Ok(()) }
    }

    /// The number of all ranks.
    pub fn ranks(&self) -> u32 {
        self.hosts.iter().map(|host| host.ranks).sum()
    }

    /// The ranks of a host.
    fn range(&self, index: usize) -> Range<u32> {
        let first = self.hosts[..index].iter().map(|host| host.ranks).sum();
        first..first + self.hosts[index].ranks
    }

    /// The host of a rank.
    pub fn of_rank(&self, rank: u32) -> Option<&Host> {
        (0..self.hosts.len()).find(|i| self.range(*i).contains(&rank)).map(|i| &self.hosts[i])
    }

    /// The host of this name, or this machine; and its ranks.
    ///
    /// # Errors
    /// When there is none, or several could be this machine.
    pub fn here(&self, name: Option<&str>) -> Result<(&Host, Range<u32>), Diagnostics> {
        let known = || self.hosts.iter().map(Host::name).collect::<Vec<_>>().join(", ");
        let own: Vec<usize> = match name {
            Some(name) => (0..self.hosts.len()).filter(|i| self.hosts[*i].name() == name).collect(),
            None => (0..self.hosts.len()).filter(|i| self.hosts[*i].is_here()).collect(),
        };
        match (&own[..], name) {
            ([one], _) => Ok((&self.hosts[*one], self.range(*one))),
            ([], Some(name)) => {
                Err(error(Code::INPUT, format!("there is no host '{name}'; there are {}", known())).into())
            }
            ([], None) => {
                let what = format!("none of the hosts is this machine: {}", known());
                Err(error(Code::INPUT, what).hint("--host NAME says which one it is").into())
            }
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|i| self.hosts[*i].name()).collect();
                let what = format!("several hosts are this machine: {}", names.join(", "));
                Err(error(Code::INPUT, what).hint("--host NAME says which one to start").into())
            }
        }
    }

    /// The address of the rendezvous.
    pub fn rendezvous(&self) -> String {
        let host = self.hosts.first().map_or("", |host| host.address.0.as_str());
        let Port(port) = self.port;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Whether all are this machine, by loopback addresses.
    pub fn are_loopback(&self) -> bool {
        self.hosts.iter().all(|host| {
            let found = (host.address.0.as_str(), 0).to_socket_addrs();
            found.is_ok_and(|mut all| all.all(|address: SocketAddr| address.ip().is_loopback()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Hosts, String> {
        let hosts: Hosts = toml::from_str(text).map_err(|e| e.to_string())?;
        hosts.check().map(|()| hosts)
    }

    #[test]
    fn ranks_are_numbered_in_the_order_of_hosts() {
        let hosts = parse(
            "[[host]]\naddress = \"node1\"\nranks = 2\ndevices = [0, 1]\n[[host]]\naddress = \"::1\"\nname = \"b\"\nranks = 3\nthreads = 4",
        )
        .unwrap();
        assert_eq!((hosts.ranks(), hosts.rendezvous().as_str()), (5, "node1:29400"));
        let names: Vec<_> = (0..6).map(|rank| hosts.of_rank(rank).map(Host::name)).collect();
        assert_eq!(names, [Some("node1"), Some("node1"), Some("b"), Some("b"), Some("b"), None]);
        let (own, ranks) = hosts.here(Some("b")).unwrap();
        assert_eq!((own.threads, ranks), (Some(4), 2..5));
        assert!(hosts.here(Some("c")).unwrap_err().to_string().contains("there are node1, b"));
        assert!(!hosts.are_loopback());
    }

    #[test]
    fn ports_and_memory_have_units() {
        let text = "ports = \"29500-29600\"\n[[host]]\naddress = \"a\"\nranks = 2\nmemory = \"4GiB\"";
        let hosts = parse(text).unwrap();
        assert_eq!(hosts.ports, Some(Ports(29500..=29600)));
        assert_eq!(hosts.hosts[0].memory, Some(Memory(4 << 30)));
    }

    #[test]
    fn addresses_of_ipv6_have_brackets_or_none() {
        for address in ["::1", "[::1]"] {
            let hosts = parse(&format!("port = 7\n[[host]]\naddress = \"{address}\"\nranks = 1")).unwrap();
            assert_eq!((hosts.hosts[0].name(), hosts.rendezvous().as_str()), ("::1", "[::1]:7"));
        }
    }

    #[test]
    fn wrong_files_say_what_is_wrong() {
        for (text, words) in [
            ("", "missing field `host`"),
            ("host = []", "it has no [[host]]"),
            ("[[host]]\naddress = \"a\"", "missing field `ranks`"),
            ("[[host]]\naddress = \"a\"\nranks = 0", "has no ranks"),
            ("[[host]]\naddress = \"a\"\nranks = 2\ndevices = [1]", "has 1 devices for 2 ranks"),
            ("[[host]]\naddress = \"a\"\nranks = 1\nthreads = 0", "0 threads"),
            ("[[host]]\naddress = \"a\"\nranks = 1\n[[host]]\naddress = \"a\"\nranks = 1", "two hosts are called 'a'"),
            ("[[host]]\naddress = \"a\"\nranks = 1\ncores = 3", "unknown field `cores`"),
            ("[[host]]\naddress = \"a\"\nranks = 1\nmemory = \"much\"", "'much': a size is a number of bytes"),
            ("port = 0\n[[host]]\naddress = \"a\"\nranks = 1", "port 0 is none at which other hosts can connect"),
            ("[[host]]\naddress = \"\"\nranks = 1", "the address is empty"),
            ("[[host]]\naddress = \"[a]\"\nranks = 1", "'[a]' is no IPv6 address in brackets"),
            ("[[host]]\naddress = \"[::1\"\nranks = 1", "'[::1' is no address of a host"),
            ("[[host]]\naddress = \"[::1]:7\"\nranks = 1", "the address '[::1]:7' has a port"),
            ("[[host]]\naddress = \"node1:7\"\nranks = 1", "give 'node1' alone"),
            ("[[host]]\naddress = \"http://a\"\nranks = 1", "'http://a' is no address of a host"),
            ("ports = \"7\"\n[[host]]\naddress = \"a\"\nranks = 2", "ports 7-7 are fewer than the 2 ranks of host 'a'"),
            ("ports = \"9-8\"\n[[host]]\naddress = \"a\"\nranks = 1", "'9-8' is no range of ports"),
            ("ports = \"1-99999\"\n[[host]]\naddress = \"a\"\nranks = 1", "is no range of ports, such as 29500-29600"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
