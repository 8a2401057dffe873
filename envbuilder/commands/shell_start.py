"""Start the user's own shell so that its prompt names the environment, and PATH begins with it.

Startup files set both: they run first, and what is needed is done after them. In these scripts,
`$0` is the shell and `$1` begins the prompt; nothing is put into their text.
"""

from __future__ import annotations

_STARTS = {
    "bash": r"""
export ENVBUILDER_PATH="$PATH" ENVBUILDER_PROMPT="$1"
exec "$0" --rcfile /dev/fd/3 -i 3<<'END'
[ ! -f ~/.bashrc ] || . ~/.bashrc
PATH="$ENVBUILDER_PATH:$PATH"
_envbuilder_name="$ENVBUILDER_PROMPT"
unset ENVBUILDER_PATH ENVBUILDER_PROMPT
_envbuilder_prompt() {
  [[ $PS1 == *"$_envbuilder_name"* ]] || PS1="$_envbuilder_name$PS1"
}
PROMPT_COMMAND="${PROMPT_COMMAND:+$PROMPT_COMMAND
}_envbuilder_prompt"
exec 3<&-
END
""",
    "zsh": r"""
if ENVBUILDER_FOLDER=$(mktemp -d); then
export ENVBUILDER_FOLDER ENVBUILDER_PATH="$PATH" ENVBUILDER_PROMPT="$1"
[ -z "${ZDOTDIR+set}" ] || export ENVBUILDER_ZDOTDIR="$ZDOTDIR"
export ZDOTDIR="$ENVBUILDER_FOLDER"
cat >"$ZDOTDIR/.zshenv" <<'END'
if (( ${+ENVBUILDER_ZDOTDIR} )); then ZDOTDIR=$ENVBUILDER_ZDOTDIR; else unset ZDOTDIR; fi
rm -f -- "$ENVBUILDER_FOLDER/.zshenv" && rmdir -- "$ENVBUILDER_FOLDER"
_envbuilder_path=$ENVBUILDER_PATH _envbuilder_name=$ENVBUILDER_PROMPT
unset ENVBUILDER_FOLDER ENVBUILDER_PATH ENVBUILDER_PROMPT ENVBUILDER_ZDOTDIR
_envbuilder_prompt() {
  (( ! ${+_envbuilder_path} )) || PATH=$_envbuilder_path:$PATH
  unset _envbuilder_path
  [[ $PROMPT == *"$_envbuilder_name"* ]] || PROMPT=$_envbuilder_name$PROMPT
  precmd_functions=(${precmd_functions:#_envbuilder_prompt} _envbuilder_prompt)
}
precmd_functions+=(_envbuilder_prompt)
[[ ! -f ${ZDOTDIR:-$HOME}/.zshenv ]] || . "${ZDOTDIR:-$HOME}/.zshenv"
END
fi
exec "$0" -i
""",
    "fish": r"""
export ENVBUILDER_PATH="$PATH" ENVBUILDER_PROMPT="$1"
exec "$0" -i -C '
set -gx PATH (string split : -- $ENVBUILDER_PATH) $PATH
set -g _envbuilder_name $ENVBUILDER_PROMPT
set -e ENVBUILDER_PATH
set -e ENVBUILDER_PROMPT
functions -c fish_prompt _envbuilder_fish_prompt
function _envbuilder_status
    return $argv[1]
end
function fish_prompt
    set -l last $status
    printf %s "$_envbuilder_name"
    _envbuilder_status $last
    _envbuilder_fish_prompt
end'
""",
}
"""How to start some shells. zsh reads no file of ours but `.zshenv`, which leads it back to the
user's own before the others are read."""
_OTHER = r"""
[ -z "$1" ] || export PS1="$1$([ "$(id -u)" = 0 ] && echo '#' || echo '$') "
"""


def command(shell: str, name: str) -> tuple[str, ...]:
    """Return a command that starts a shell, or sh, which every image has, if there is none.

    `name` begins its prompt, where the shell has one that can be set; empty to leave it.
    """
    start = _STARTS.get(shell.rpartition("/")[2], _OTHER + 'exec "$0" -i\n')
    script = f'if [ -x "$0" ]; then{start}fi{_OTHER}exec /bin/sh -i\n'
    return ("/bin/sh", "-c", script, shell, name)
