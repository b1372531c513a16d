#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A mutant is a bug that the tests must find: a patch in this folder. Its first lines say what is wrong, in which worlds
# of the simulator that shows, and what must find it. Run this in transport_c/.
#
#   mutant.sh apply NAME FOLDER          copies the files that the patch touches into FOLDER, with the bug in them
#   mutant.sh edit NAME [FILE ...]       opens build/edit/NAME with these copies, or with FILE for a new mutant; once
#                                        you have changed them, the same command writes the patch anew
set -eu
verb=$1 name=$2
patch_file=sim/mutants/$name.patch

touched() { sed -n 's|^+++ b/||p' "$patch_file"; }

# Copies the |files| into the folder $1.
copy() {
    rm -rf "$1"
    for file in $files; do
        mkdir -p "$1/$(dirname "$file")"
        cp "$file" "$1/$file"
    done
}

apply() {
    files=$(touched)
    copy "$1"
    patch -d "$1" -p1 -F0 -s -r- <"$patch_file" >"$1/said" 2>&1 && touch "$1/applied" && return
    cat "$1/said" >&2
    echo "mutant $name no longer applies: make -C transport_c mutant NAME=$name" >&2
    exit 1
}

open() {
    [ -e "$patch_file" ] && files=$(touched) || files=$*
    [ -n "$files" ] || { echo "no mutant is called $name; for a new one, FILES names what it changes" >&2; exit 2; }
    copy "$edit"
    [ ! -e "$patch_file" ] || patch -d "$edit" -p1 <"$patch_file" || true # what does not fit is in .rej files
    printf 'Now put the bug into these files, then run the command again:\n'
    for file in $files; do echo "  transport_c/$edit/$file"; done
}

close() {
    files=$(cd "$edit" && find . -name '*.[ch]' | sed 's|^\./||' | sort)
    if [ -e "$patch_file" ]; then sed '/^--- /,$d' "$patch_file"; else printf 'Bug: \nWorlds: plain\nFound by: \n'; fi \
        >"$edit/new"
    for file in $files; do
        diff -U1 --label "a/$file" --label "b/$file" "$file" "$edit/$file" >>"$edit/new" || true
    done
    grep -q '^@@' "$edit/new" || { echo "$edit has no bug in it yet" >&2; exit 2; }
    mv "$edit/new" "$patch_file"
    rm -rf "$edit"
    echo "transport_c/$patch_file is written; its first lines must say what finds it, and in which worlds"
}

edit=build/edit/$name
case $verb in
apply) apply "$3" ;;
edit) shift 2 && if [ -e "$edit" ]; then close; else open "$@"; fi ;;
esac
