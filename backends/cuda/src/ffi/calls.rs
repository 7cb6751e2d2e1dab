//! The library calls of a program, ready to be enqueued on a stream.

use of_codegen::vendor_libraries::Call;
use of_codegen::vendor_libraries::cublaslt::Product;

use super::cublaslt::CublasLt;
use super::cudnn::{ConvolutionPlan, Cudnn};
use super::{Address, Stream};
use crate::driver::DriverError;
use crate::program::DeviceProgram;

/// The calls of a program, with the libraries that it needs. Planned calls are released before their library.
#[derive(Default)]
pub struct Calls {
    ready: Vec<PlannedCall>,
    cublaslt: Option<CublasLt>,
    cudnn: Option<Cudnn>,
}

/// A call and the addresses of its arguments.
enum PlannedCall {
    Product(Product, Vec<Address>),
    Convolution(ConvolutionPlan),
}

impl Calls {
    /// Opens the libraries that a program calls, for the calling thread's context, and plans the calls. The program's memory
    /// begins at `base`.
    ///
    /// # Errors
    /// When the machine does not have a library, it does not start, or it does not support the computation.
    pub fn open(program: &DeviceProgram<'_>, base: Address) -> Result<Calls, DriverError> {
        let mut out = Calls::default();
        let workspace = base + program.workspace;
        for (call, args) in program.calls() {
            let args: Vec<Address> = args.iter().map(|a| base + a.at).collect();
            out.ready.push(match call {
                Call::Product(product) => {
                    if out.cublaslt.is_none() {
                        out.cublaslt = Some(CublasLt::open(workspace)?);
                    }
                    PlannedCall::Product(*product, args)
                }
                Call::Convolution(convolution) => {
                    let cudnn = match out.cudnn.take() {
                        Some(cudnn) => cudnn,
                        None => Cudnn::open(workspace)?,
                    };
                    let planned = cudnn.plan(convolution, &args);
                    out.cudnn = Some(cudnn);
                    PlannedCall::Convolution(planned?)
                }
            });
        }
        Ok(out)
    }

    /// Enqueues a call on a stream, by its number.
    ///
    /// # Errors
    /// When the library rejects it.
    ///
    /// # Safety
    /// The memory that the calls were opened with is on the device and has the program's size. Nothing else uses what the
    /// call writes, or the workspace, until the stream completes.
    pub unsafe fn enqueue(&self, number: usize, stream: Stream) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (self.ready.get(number), &self.cublaslt, &self.cudnn) {
                (Some(PlannedCall::Product(product, args)), Some(library), _) => {
                    library.multiply(product, args, stream)
                }
                (Some(PlannedCall::Convolution(planned)), _, Some(library)) => library.convolve(planned, stream),
                _ => Ok(()),
            }
        }
    }
}
