// A map of objects: built, an eighth of it looked up at random and changed, then added up. Argument: memory in MiB.
"use strict";
const n = Number(process.argv[2]) * 3000;
const looks = Math.floor(n / 8);
const table = new Map();
for (let i = 0; i < n; i++) table.set(i, { number: i, name: "name-" + i, list: [i, i + 1] });
let at = 1;
for (let i = 0; i < looks; i++) {
  at = (at * 48271 + 11) % n;
  const entry = table.get(at);
  if (entry.name !== "name-" + at) throw new Error(`entry ${at} is ${entry.name}`);
  entry.list[1] += 1;
}
let sum = 0;
for (const entry of table.values()) sum += entry.list[1] - entry.list[0];
console.log("answer", sum, sum === n + looks);
