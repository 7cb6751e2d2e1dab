//! What is needed of NumPy: its functions, and the dtypes of element types.

use of_plan::ElementType;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// Functions and dtypes of NumPy, looked up once.
pub struct Numpy {
    pub empty: Py<PyAny>,
    pub asarray: Py<PyAny>,
    pub array: Py<PyAny>,
    dtype: Py<PyAny>,
    object: Py<PyAny>,
    /// By the number of the element type.
    dtypes: Vec<PyOnceLock<Py<PyAny>>>,
}

/// The dtype of each element type, as NumPy or ml_dtypes call it.
const NAMES: [(ElementType, &str); 23] = [
    (ElementType::F64, "float64"),
    (ElementType::F32, "float32"),
    (ElementType::F16, "float16"),
    (ElementType::Bf16, "bfloat16"),
    (ElementType::F8E4M3FN, "float8_e4m3fn"),
    (ElementType::F8E4M3FNUZ, "float8_e4m3fnuz"),
    (ElementType::F8E5M2, "float8_e5m2"),
    (ElementType::F8E5M2FNUZ, "float8_e5m2fnuz"),
    (ElementType::I4, "int4"),
    (ElementType::I8, "int8"),
    (ElementType::I16, "int16"),
    (ElementType::I32, "int32"),
    (ElementType::I64, "int64"),
    (ElementType::Ui4, "uint4"),
    (ElementType::Ui8, "uint8"),
    (ElementType::Ui16, "uint16"),
    (ElementType::Ui32, "uint32"),
    (ElementType::Ui64, "uint64"),
    (ElementType::I1, "bool"),
    (ElementType::F8E8M0FNU, "float8_e8m0fnu"),
    (ElementType::F4E2M1FN, "float4_e2m1fn"),
    (ElementType::I2, "int2"),
    (ElementType::Ui2, "uint2"),
];

/// The name of an element type's dtype: `float32`, `bfloat16`, `str` for text, `object` for what is no tensor.
pub fn name(dtype: ElementType) -> &'static str {
    match dtype {
        ElementType::String => "str",
        ElementType::Unknown => "object",
        other => NAMES.iter().find(|(known, _)| *known == other).map_or(other.name(), |(_, name)| name),
    }
}

/// The element type of a dtype.
pub fn element_type(name: &str) -> Option<ElementType> {
    NAMES.iter().find(|(_, known)| *known == name).map(|(dtype, _)| *dtype)
}

/// Whether NumPy itself has the dtype; ml_dtypes has the others.
fn is_of_numpy(dtype: ElementType) -> bool {
    use ElementType::*;
    matches!(dtype, F64 | F32 | F16 | I8 | I16 | I32 | I64 | Ui8 | Ui16 | Ui32 | Ui64 | I1)
}

impl Numpy {
    /// NumPy of this process.
    ///
    /// # Errors
    /// When it cannot be imported.
    pub fn get(py: Python<'_>) -> PyResult<&'static Numpy> {
        static NUMPY: PyOnceLock<Numpy> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || {
            let numpy = py.import("numpy")?;
            let function = |name: &str| Ok::<_, PyErr>(numpy.getattr(name)?.unbind());
            let dtype = function("dtype")?;
            Ok(Numpy {
                empty: function("empty")?,
                asarray: function("asarray")?,
                array: function("array")?,
                object: dtype.bind(py).call1(("object",))?.unbind(),
                dtype,
                dtypes: ElementType::ALL.iter().map(|_| PyOnceLock::new()).collect(),
            })
        })
    }

    /// The dtype of an element type.
    ///
    /// # Errors
    /// When it is one of ml_dtypes, which is not installed.
    pub fn dtype<'py>(&self, py: Python<'py>, dtype: ElementType) -> PyResult<&Bound<'py, PyAny>> {
        if self.dtypes.get(dtype as usize).is_none() || matches!(dtype, ElementType::String | ElementType::Unknown) {
            return Ok(self.object.bind(py));
        }
        let made = self.dtypes[dtype as usize].get_or_try_init(py, || {
            let name = name(dtype);
            let of = if is_of_numpy(dtype) {
                name.into_pyobject(py)?.into_any()
            } else {
                let found = py.import("ml_dtypes").and_then(|module| module.getattr(name));
                found.map_err(|_| {
                    let what = format!("NumPy has no dtype {name}, and the package ml_dtypes does not provide it");
                    crate::error::input_error(py, what, Some("install ml_dtypes"))
                })?
            };
            Ok::<_, PyErr>(self.dtype.bind(py).call1((of,))?.unbind())
        });
        Ok(made?.bind(py))
    }

    /// An array of undefined elements.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn empty<'py>(&self, py: Python<'py>, dtype: ElementType, dims: &[i64]) -> PyResult<Bound<'py, PyAny>> {
        let shape = pyo3::types::PyTuple::new(py, dims)?;
        self.empty.bind(py).call1((shape, self.dtype(py, dtype)?))
    }

    /// An array of Python objects.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn objects<'py>(&self, py: Python<'py>, list: Vec<String>, dims: &[i64]) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", self.object.bind(py))?;
        let flat = self.array.bind(py).call((list,), Some(&keywords))?;
        flat.call_method1("reshape", (pyo3::types::PyTuple::new(py, dims)?,))
    }

    /// A row-major copy in native byte order.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn contiguous<'py>(&self, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = array.py();
        let keywords = PyDict::new(py);
        keywords.set_item("dtype", array.getattr("dtype")?.call_method1("newbyteorder", ("=",))?)?;
        keywords.set_item("order", "C")?;
        keywords.set_item("copy", true)?;
        self.array.bind(py).call((array,), Some(&keywords))
    }

    /// What is no array, such as a list or a number, as an array of an element type.
    ///
    /// # Errors
    /// When it cannot be converted.
    pub fn converted<'py>(&self, value: &Bound<'py, PyAny>, dtype: ElementType) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        match dtype {
            ElementType::Unknown => self.asarray.bind(py).call1((value,)),
            other => self.asarray.bind(py).call1((value, self.dtype(py, other)?)),
        }
    }
}
