-- The language server of IR text, for Neovim 0.11 or newer: `require` this file, or copy it into init.lua.

vim.filetype.add({ extension = { of = "of" } })

vim.lsp.config("of_opt", {
  cmd = { "of-opt", "lsp" },
  filetypes = { "of" },
  root_markers = { ".git" },
})
vim.lsp.enable("of_opt")

-- :OfRunPass dce,canonicalize shows what passes change in this module; with a bang it applies the change.
vim.api.nvim_create_user_command("OfRunPass", function(command)
  local client = vim.lsp.get_clients({ bufnr = 0, name = "of_opt" })[1]
  if not client then
    return vim.notify("of-opt lsp does not serve this buffer", vim.log.levels.ERROR)
  end
  local argument = { uri = vim.uri_from_bufnr(0), passes = command.args, apply = command.bang }
  local request = { command = "of-opt.runPass", arguments = { argument } }
  client:request("workspace/executeCommand", request, function(err, result)
    if err then
      return vim.notify(err.message, vim.log.levels.ERROR)
    end
    if not command.bang then
      vim.cmd.new()
      vim.bo.buftype, vim.bo.filetype = "nofile", "diff"
      vim.api.nvim_buf_set_lines(0, 0, -1, false, vim.split(result.diff, "\n"))
    end
  end, 0)
end, { nargs = 1, bang = true })
