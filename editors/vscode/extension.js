// Starts 'of-opt lsp' for IR text. The client registers the server's command and shows its code actions.

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = async () => {
  const settings = vscode.workspace.getConfiguration("of-opt");
  const libraries = settings.get("libraries").flatMap((path) => ["--library", path]);
  const server = { command: settings.get("path"), args: ["lsp", ...libraries] };
  client = new LanguageClient("of-opt", "of-opt", server, { documentSelector: [{ language: "of" }] });
  await client.start();
};

exports.deactivate = () => client?.stop();
