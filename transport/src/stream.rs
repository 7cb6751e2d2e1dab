//! A connection to another rank: bytes in order, plain, encrypted, or as messages of MPI.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::TcpStream;

use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::mpi::MpiStream;
use crate::tls::TlsStream;

/// A connection to another rank.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
    Mpi(MpiStream),
}

impl Stream {
    /// The connection of the system, to wait for and to set up; MPI has none.
    pub fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Stream::Plain(tcp) => Some(tcp),
            Stream::Tls(stream) => Some(stream.tcp()),
            Stream::Mpi(_) => None,
        }
    }

    /// Bytes that only both ends of an encrypted connection know.
    ///
    /// # Errors
    /// When the connection is not set up.
    pub fn channel_secret(&self) -> io::Result<Option<[u8; 32]>> {
        match self {
            Stream::Tls(stream) => stream.secret().map(Some),
            Stream::Plain(_) | Stream::Mpi(_) => Ok(None),
        }
    }
}

/// A socket whose writes fail where the other end is gone. `writev(2)`, as the standard library uses it for several buffers, also raises SIGPIPE,
/// which ends a program in C that embeds the runtime.
pub(crate) struct Socket<'s>(pub &'s TcpStream);

/// The most buffers of a call (`UIO_MAXIOV` of Linux).
const MAX_BUFFERS: usize = 1024;

impl Read for Socket<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.0.read(to)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(MAX_BUFFERS)];
        Ok(sendmsg(self.0, bytes, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read(to),
            Stream::Tls(stream) => stream.read(to),
            Stream::Mpi(stream) => stream.read(to),
        }
    }

    fn read_vectored(&mut self, to: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => stream.read_vectored(to),
            Stream::Tls(stream) => stream.read_vectored(to),
            Stream::Mpi(stream) => stream.read_vectored(to),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Stream::Plain(stream) => Socket(stream).write_vectored(bytes),
            Stream::Tls(stream) => stream.write_vectored(bytes),
            Stream::Mpi(stream) => stream.write_vectored(bytes),
        }
    }

    /// Sends what is buffered. A stream that does not block may have to be flushed again.
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(stream) => stream.flush(),
            Stream::Tls(stream) => stream.flush(),
            Stream::Mpi(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use signal_hook::consts::SIGPIPE;

    use super::*;

    #[test]
    fn a_write_to_an_end_that_is_gone_is_an_error_and_no_signal() {
        let raised = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGPIPE, Arc::clone(&raised)).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        let mut stream = Stream::Plain(own);
        // The first bytes are answered by a reset.
        let error = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            stream.write_vectored(&[IoSlice::new(&[1; 64]), IoSlice::new(&[2; 64])]).err()
        });
        assert!(error.is_some_and(|e| e.kind() != io::ErrorKind::WouldBlock));
        assert!(stream.write(&[3; 64]).is_err());
        assert!(!raised.load(Ordering::Acquire));
    }
}
