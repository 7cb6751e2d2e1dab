//! What a connection has sent and the other end has not acknowledged.

use std::ffi::c_int;
use std::io;
use std::net::TcpStream;

use rustix::ioctl::{Getter, Opcode, ioctl};

/// `SIOCOUTQ` of tcp(7), which is the number of `TIOCOUTQ`.
const SIOCOUTQ: Opcode = 0x5411;

/// Bytes that wait to be sent or acknowledged.
///
/// # Errors
/// When the system does not say it.
pub(crate) fn unacknowledged(stream: &TcpStream) -> io::Result<usize> {
    // SAFETY: this operation writes an `int` to the place that it gets, and does nothing else. Source: tcp(7).
    let bytes = unsafe { ioctl(stream, Getter::<SIOCOUTQ, c_int>::new()) }?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn what_does_not_fit_the_receiver_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_receiver, _) = listener.accept().unwrap();
        assert_eq!(unacknowledged(&sender).unwrap(), 0);
        sender.set_nonblocking(true).unwrap();
        // Until no more fits into the buffers of both ends.
        while sender.write(&[0; 1 << 16]).is_ok() {}
        assert!(unacknowledged(&sender).unwrap() > 0);
    }
}
