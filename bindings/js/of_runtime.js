// Runs plans in WebAssembly, in a browser or in Node.js.
//
//   import { Runtime } from "./of_runtime.js";
//   const runtime = await Runtime.load(await fetch("of_runtime.wasm"));
//   const session = runtime.open(new Uint8Array(planBytes));
//   const { probability } = session.run({ image: { dims: [1, 1, 8, 8], data: new Float32Array(64) } });
//
// of_runtime.wasm is the C interface of the runtime, built by `cargo xtask wasm`. A plan is compiled by `of-opt compile --isa wasm32`.
// Everything runs in the calling thread, so a page gives large models to a worker.

/** What the runtime says is wrong. */
export class PlanError extends Error {
  constructor(text, status) {
    super(text);
    this.name = "PlanError";
    /** The number of an `of_status`. */
    this.status = status;
  }
}

// By the number of an element type: its name and its array. 16-bit floats are their bits.
const TYPES = new Map([
  [1, ["f64", Float64Array]],
  [2, ["f32", Float32Array]],
  [3, ["f16", Uint16Array]],
  [4, ["bf16", Uint16Array]],
  [10, ["i8", Int8Array]],
  [11, ["i16", Int16Array]],
  [12, ["i32", Int32Array]],
  [13, ["i64", BigInt64Array]],
  [15, ["ui8", Uint8Array]],
  [16, ["ui16", Uint16Array]],
  [17, ["ui32", Uint32Array]],
  [18, ["ui64", BigUint64Array]],
  [19, ["i1", Uint8Array]],
]);

/** The class of the arrays that hold elements of a type, by its number in of_runtime.h; undefined if JavaScript has none. */
export function arrayOf(dtype) {
  return TYPES.get(dtype)?.[1];
}

// The layout of C structs in 32-bit memory (bindings/c/include/of_runtime.h).
const POINTER = 4;
const TENSOR = { dtype: 0, rank: 4, dims: 8, data: 12, bytes: 16, size: 20 };
const PORT = { name: 0, dtype: 4, rank: 8, dims: 12, typeText: 20, size: 24 };

/** The runtime: a module of WebAssembly with its memory. */
export class Runtime {
  #exports;
  #freeIndices = [];
  #constants = new Map();

  /**
   * Loads the module.
   * @param source a Response, a promise of one, or the bytes of of_runtime.wasm
   */
  static async load(source) {
    const runtime = new Runtime();
    const host = {
      now: () => performance.now(),
      load_kernel: (at, length) => runtime.#loadKernel(at, length),
      unload_kernel: (index) => runtime.#unloadKernel(index),
    };
    const given = await source;
    const bytes = given instanceof Uint8Array || given instanceof ArrayBuffer ? given : await given.arrayBuffer();
    const { instance } = await WebAssembly.instantiate(bytes, { of_host: host });
    runtime.#exports = instance.exports;
    return runtime;
  }

  /** The exports of the module: the C interface. */
  get c() {
    return this.#exports;
  }

  /**
   * Opens a plan and makes a session of one of its programs.
   * @param {Uint8Array} plan the bytes of a plan
   * @param {{program?: number}} [options]
   */
  open(plan, options = {}) {
    return new Session(this, plan, options.program ?? 0);
  }

  // A view of the memory, which is another buffer after the memory grew.
  view() {
    return new DataView(this.#exports.memory.buffer);
  }

  allocate(bytes, align = 16) {
    const at = this.#exports.of_memory_allocate(bytes, align);
    if (at === 0) throw new PlanError(`there is no memory for ${bytes} bytes`, 6);
    return at;
  }

  free(at, bytes, align = 16) {
    this.#exports.of_memory_free(at, bytes, align);
  }

  text(at) {
    const memory = new Uint8Array(this.#exports.memory.buffer);
    return new TextDecoder().decode(memory.slice(at, memory.indexOf(0, at)));
  }

  check(status) {
    if (status !== 0) throw new PlanError(this.text(this.#exports.of_error_text()), status);
  }

  // Calls a function with so many bytes of memory that it writes a result to.
  result(bytes, call) {
    const at = this.allocate(bytes);
    try {
      this.check(call(at));
      return new DataView(this.#exports.memory.buffer.slice(at, at + bytes));
    } finally {
      this.free(at, bytes);
    }
  }

  // Makes an instance of a kernel's module, which has constants of its own, on the memory and stack of the runtime.
  #loadKernel(at, length) {
    const { memory, __indirect_function_table: table, __stack_pointer } = this.#exports;
    try {
      const module = new WebAssembly.Module(new Uint8Array(memory.buffer, at, length).slice());
      const { bytes, align } = constantsOf(module);
      const base = bytes === 0 ? 0 : this.allocate(bytes, align);
      const fixed = (value) => new WebAssembly.Global({ value: "i32", mutable: false }, value);
      const env = { memory, __stack_pointer, __memory_base: fixed(base), __table_base: fixed(0) };
      const { kernel, __wasm_apply_data_relocs: relocate } = new WebAssembly.Instance(module, { env }).exports;
      relocate?.();
      const index = this.#freeIndices.pop() ?? table.grow(1);
      table.set(index, kernel);
      if (base !== 0) this.#constants.set(index, { base, bytes, align });
      return index;
    } catch (error) {
      console.error(error);
      return 0;
    }
  }

  #unloadKernel(index) {
    this.#exports.__indirect_function_table.set(index, null);
    this.#freeIndices.push(index);
    const constants = this.#constants.get(index);
    if (constants === undefined) return;
    this.#constants.delete(index);
    this.free(constants.base, constants.bytes, constants.align);
  }
}

// Bytes and alignment of a module's constants: the part WASM_DYLINK_MEM_INFO of its section dylink.0.
// Source: WebAssembly tool conventions, DynamicLinking.md.
function constantsOf(module) {
  const [section] = WebAssembly.Module.customSections(module, "dylink.0");
  if (section === undefined) return { bytes: 0, align: 1 };
  const bytes = new Uint8Array(section);
  let at = 0;
  const number = () => {
    for (let value = 0, shift = 0; ; shift += 7) {
      const byte = bytes[at++];
      value += (byte & 0x7f) * 2 ** shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < bytes.length) {
    const kind = number();
    const length = number();
    const end = at + length;
    if (kind === 1) {
      const size = number();
      return { bytes: size, align: 2 ** number() };
    }
    at = end;
  }
  return { bytes: 0, align: 1 };
}

/** A program with its memory and kernels. It runs any number of times. */
export class Session {
  #runtime;
  #session = 0;
  #inputs = [];
  #outputs = [];

  constructor(runtime, plan, program) {
    this.#runtime = runtime;
    const { c } = runtime;
    const at = runtime.allocate(plan.length);
    new Uint8Array(c.memory.buffer).set(plan, at);
    let opened;
    try {
      opened = runtime.result(POINTER, (to) => c.of_plan_open_memory(at, plan.length, to)).getUint32(0, true);
    } finally {
      runtime.free(at, plan.length);
    }
    try {
      this.#inputs = ports(runtime, opened, program, c.of_plan_input_count, c.of_plan_input);
      this.#outputs = ports(runtime, opened, program, c.of_plan_output_count, c.of_plan_output);
      // struct of_session_options: the number of a program, a number of threads, and a number of bytes.
      const options = runtime.allocate(16);
      try {
        runtime.view().setUint32(options, program, true);
        runtime.view().setUint32(options + 4, 1, true);
        const made = runtime.result(POINTER, (to) => c.of_session_new(opened, options, to));
        this.#session = made.getUint32(0, true);
      } finally {
        runtime.free(options, 16);
      }
    } finally {
      c.of_plan_free(opened);
    }
  }

  /** The inputs: names, numbers of element types, and types for people. */
  get inputs() {
    return this.#inputs.map((port) => ({ ...port }));
  }

  /** The outputs, as the inputs. */
  get outputs() {
    return this.#outputs.map((port) => ({ ...port }));
  }

  /**
   * Runs the program.
   * @param inputs for the name of each input its extents and elements, in row-major order
   * @returns for the name of each output its type, extents and elements
   */
  run(inputs) {
    const unknown = Object.keys(inputs).find((name) => !this.#inputs.some((port) => port.name === name));
    if (unknown !== undefined) throw new PlanError(`the plan has no input '${unknown}'`, 5);
    const { c } = this.#runtime;
    const placed = [];
    try {
      this.#inputs.forEach((port, index) => {
        if (inputs[port.name] === undefined) throw new PlanError(`the input '${port.name}' is missing`, 5);
        this.#setInput(port, index, inputs[port.name], placed);
      });
      this.#runtime.check(c.of_session_run(this.#session));
      return Object.fromEntries(this.#outputs.map((port, index) => [port.name, this.#output(index)]));
    } finally {
      for (const [at, bytes] of placed) this.#runtime.free(at, bytes);
    }
  }

  /** Frees the memory. The session cannot be used any more. */
  free() {
    this.#runtime.c.of_session_free(this.#session);
    this.#session = 0;
  }

  #setInput(port, index, { dims, data }, placed) {
    const runtime = this.#runtime;
    const type = TYPES.get(port.dtype);
    if (type === undefined) throw new PlanError(`the input '${port.name}' is ${port.type}, which JavaScript has no array for`, 4);
    const [name, Numbers] = type;
    if (!(data instanceof Numbers)) throw new PlanError(`the input '${port.name}' is ${name}, and takes a ${Numbers.name}`, 5);
    const room = (bytes) => {
      const at = runtime.allocate(bytes);
      placed.push([at, bytes]);
      return at;
    };
    const elements = room(data.byteLength);
    const extents = room(8 * dims.length);
    const tensor = room(TENSOR.size);
    const view = runtime.view();
    new Numbers(view.buffer, elements, data.length).set(data);
    dims.forEach((extent, axis) => view.setBigInt64(extents + 8 * axis, BigInt(extent), true));
    view.setUint32(tensor + TENSOR.dtype, port.dtype, true);
    view.setUint32(tensor + TENSOR.rank, dims.length, true);
    view.setUint32(tensor + TENSOR.dims, extents, true);
    view.setUint32(tensor + TENSOR.data, elements, true);
    view.setUint32(tensor + TENSOR.bytes, data.byteLength, true);
    runtime.check(runtime.c.of_session_set_input(this.#session, index, tensor));
  }

  #output(index) {
    const runtime = this.#runtime;
    const tensor = runtime.result(TENSOR.size, (to) => runtime.c.of_session_output(this.#session, index, to));
    const field = (name) => tensor.getUint32(TENSOR[name], true);
    const type = TYPES.get(field("dtype"));
    if (type === undefined) throw new PlanError(`output ${index} has a type which JavaScript has no array for`, 4);
    const [name, Numbers] = type;
    const view = runtime.view();
    const extent = (axis) => Number(view.getBigInt64(field("dims") + 8 * axis, true));
    const dims = Array.from({ length: field("rank") }, (_, axis) => extent(axis));
    const data = new Numbers(view.buffer.slice(field("data"), field("data") + field("bytes")));
    return { type: name, dims, data };
  }
}

function ports(runtime, plan, program, count, port) {
  const found = runtime.result(POINTER, (to) => count(plan, program, to)).getUint32(0, true);
  return Array.from({ length: found }, (_, index) => {
    const struct = runtime.result(PORT.size, (to) => port(plan, program, index, to));
    const pointer = (name) => struct.getUint32(PORT[name], true);
    return { name: runtime.text(pointer("name")), type: runtime.text(pointer("typeText")), dtype: pointer("dtype") };
  });
}
