" Colours of IR text. A copy in ~/.config/nvim/syntax (or ~/.vim/syntax) is found by its name.

if exists("b:current_syntax")
  finish
endif

syntax match ofNumber "\(\<\|x\@1<=\)\d\+\(\.\d*\)\?\([eE][-+]\?\d\+\)\?\(x\@=\|\>\)\|\<0x\x\+\>"
syntax match ofType "\(\<\|\([0-9)?*]x\)\@2<=\)\(bf16\|f16\|f32\|f64\|f8E\w\+\|f4E2M1FN\|u\?i\d\+\)\>\|\<tensor\>\|![A-Za-z0-9_$.]\+"
syntax match ofAttribute "\<[A-Za-z_][A-Za-z0-9_$.]*\>\s*="me=e-1
syntax match ofOp "\<[A-Za-z_][A-Za-z0-9_$]*\.[A-Za-z0-9_$.]*"
syntax match ofHash "#[A-Za-z0-9_$.]\+"
syntax match ofValue "%[A-Za-z0-9_$.]\+\(-\+[A-Za-z0-9_$.]\+\)*"
syntax match ofSymbol '@\("\([^"\\]\|\\.\)*"\|[A-Za-z0-9_$.]\+\)'
syntax match ofLabel "\^[A-Za-z0-9_$.-]*"
syntax keyword ofKeyword func module attributes loc fused unknown
syntax keyword ofConstant true false unit none dense dense_resource array
syntax region ofString start=+"+ skip=+\\\\\|\\"+ end=+"+ oneline
syntax match ofComment "//.*$"

highlight default link ofNumber Number
highlight default link ofType Type
highlight default link ofAttribute Identifier
highlight default link ofOp Function
highlight default link ofHash PreProc
highlight default link ofValue Normal
highlight default link ofSymbol Special
highlight default link ofLabel Label
highlight default link ofKeyword Keyword
highlight default link ofConstant Constant
highlight default link ofString String
highlight default link ofComment Comment

let b:current_syntax = "of"
