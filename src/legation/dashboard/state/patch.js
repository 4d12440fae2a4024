// A git patch as files: names and counts at once, lines when somebody opens a file.
const HUNK = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/;

export function files(patch) {
  const parts = patch.split(/^diff --git /m).slice(1);
  return parts.map((text) => {
    const line = (start) => text.match(new RegExp(`^${start}(.*)$`, "m"))?.[1]?.replace(/^"?[ab]\/|"$/g, "");
    const [before, after] = [line("--- "), line("\\+\\+\\+ ")];
    const named = text.slice(0, text.indexOf("\n")).replace(/^.* "?b\//, "").replace(/"$/, "");
    const isNew = /^new file mode/m.test(text);
    const body = text.slice(Math.max(0, text.search(/^@@ /m)));
    return {
      path: [after, before].find((each) => each && each !== "/dev/null") ?? named,
      isNew,
      isDeleted: /^deleted file mode/m.test(text),
      binary: /^(Binary files|GIT binary patch)/m.test(text),
      added: (body.match(/^\+/gm) ?? []).length,
      removed: (body.match(/^-/gm) ?? []).length,
      text,
    };
  });
}

export function hunks(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const at = line.match(HUNK);
    if (at) found.push({ oldStart: Number(at[1]), newStart: Number(at[2]), lines: [] });
    else if (found.length && /^[ +\-\\]/.test(line)) found.at(-1).lines.push(line);
  }
  return found;
}
