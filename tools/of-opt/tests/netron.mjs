// Opens a model as Netron does, without a window: node netron.mjs FOLDER_OF_THE_PACKAGE MODEL. It prints JSON: the format, the inputs
// and outputs with their types, each node with its attributes, and the bytes of the first initializer.
import fs from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const [folder, file] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(path.join(folder, `${name}.js`)));
const [base, view] = await Promise.all([load('base'), load('view')]);

// What Netron asks its window for.
const host = {
    environment: () => null,
    event() {},
    require: (id) => load(id),
    asset: (name) => fs.promises.readFile(path.join(folder, name), 'utf-8'),
};
const context = {
    identifier: path.basename(file),
    stream: new base.BinaryStream(new Uint8Array(fs.readFileSync(file))),
    entries: new Map(),
    require: (id) => load(id),
    asset: host.asset,
    fetch: async (name) => new base.BinaryStream(new Uint8Array(fs.readFileSync(path.join(path.dirname(file), name)))),
    error(error) {
        throw error;
    },
};
const model = await new view.ModelFactoryService(host).open(context);
const [graph] = model.modules || model.graphs;
const values = (list) => list.flatMap((argument) => argument.value.map((value) => `${argument.name}: ${value.type}`));
const node = (node) => {
    const attributes = (node.attributes || []).map((attribute) => [attribute.name, String(attribute.value)]);
    return { type: node.type.name, name: node.name, attributes: Object.fromEntries(attributes) };
};
console.log(JSON.stringify({
    format: model.format,
    inputs: values(graph.inputs),
    outputs: values(graph.outputs),
    nodes: graph.nodes.map(node),
    metadata: Object.fromEntries((graph.metadata || []).concat(model.metadata || []).map((entry) => [entry.name, entry.value])),
}));
