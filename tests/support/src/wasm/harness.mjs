// Runs plans by the runtime for WebAssembly: node harness.mjs LIBRARY.js RUNTIME.wasm FOLDER COUNT. The folder has for each number N.plan and
// N.inputs, and gets N.outputs or N.error. In a file of tensors each has the number of its extents, the extents, the number of its bytes, all
// of 64 bits, and the bytes.
import { readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [library, module, folder, count] = process.argv.slice(2);
const { Runtime, arrayOf } = await import(pathToFileURL(library));
const runtime = await Runtime.load(await readFile(module));

function read(file) {
  const bytes = file.buffer.slice(file.byteOffset, file.byteOffset + file.length);
  const view = new DataView(bytes);
  let at = 0;
  const word = () => Number(view.getBigInt64((at += 8) - 8, true));
  const tensors = [];
  while (at < bytes.byteLength) {
    const dims = Array.from({ length: word() }, word);
    const length = word();
    tensors.push({ dims, bytes: bytes.slice(at, (at += length)) });
  }
  return tensors;
}

function written(tensors) {
  const parts = [];
  for (const { dims, data } of tensors) {
    parts.push(Buffer.from(new BigInt64Array([dims.length, ...dims, data.byteLength].map(BigInt)).buffer));
    parts.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  }
  return Buffer.concat(parts);
}

for (let number = 0; number < Number(count); number++) {
  const file = (kind) => path.join(folder, `${number}.${kind}`);
  let session = null;
  try {
    session = runtime.open(await readFile(file("plan")));
    const given = read(await readFile(file("inputs")));
    const inputs = session.inputs.map(({ name, dtype }, index) => {
      const Numbers = arrayOf(dtype);
      return [name, { dims: given[index].dims, data: new Numbers(given[index].bytes) }];
    });
    const outputs = session.run(Object.fromEntries(inputs));
    await writeFile(file("outputs"), written(session.outputs.map(({ name }) => outputs[name])));
  } catch (error) {
    await writeFile(file("error"), String(error.stack ?? error));
  } finally {
    session?.free();
  }
}
