/** Elements of a tensor. 16-bit floats are their bits. */
export type Elements =
  | Float64Array | Float32Array | Int8Array | Int16Array | Int32Array | BigInt64Array
  | Uint8Array | Uint16Array | Uint32Array | BigUint64Array;

/** A tensor in row-major order. */
export interface Tensor<E extends Elements = Elements> {
  dims: readonly (number | bigint)[];
  data: E;
}

/** A result. */
export interface Output extends Tensor {
  /** The name of the element type, such as "f32". */
  type: string;
  dims: number[];
}

/** An input or output: its name, the number of its element type (of_runtime.h), and its type for people. */
export interface Port {
  name: string;
  dtype: number;
  type: string;
}

/** What the runtime says is wrong. */
export class PlanError extends Error {
  constructor(text: string, status: number);
  /** The number of an `of_status`. */
  status: number;
}

/** The class of the arrays that hold elements of a type, by its number in of_runtime.h; undefined if JavaScript has none. */
export function arrayOf(dtype: number): (new (buffer: ArrayBufferLike) => Elements) | undefined;

/** The runtime: a module of WebAssembly with its memory. */
export class Runtime {
  private constructor();
  /** Loads the module: a Response, a promise of one, or the bytes of of_runtime.wasm. */
  static load(source: Response | Promise<Response> | ArrayBuffer | Uint8Array): Promise<Runtime>;
  /** Opens a plan and makes a session of one of its programs. */
  open(plan: Uint8Array, options?: { program?: number }): Session;
}

/** A program with its memory and kernels. It runs any number of times. */
export class Session {
  private constructor();
  readonly inputs: Port[];
  readonly outputs: Port[];
  /** Runs the program on a tensor for the name of each input; the result has one for the name of each output. */
  run(inputs: Record<string, Tensor>): Record<string, Output>;
  /** Frees the memory. The session cannot be used any more. */
  free(): void;
}
