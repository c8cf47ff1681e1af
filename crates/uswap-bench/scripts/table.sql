-- A table in memory: filled, indexed, updated, partly joined at random. ROWS is replaced by their number.
PRAGMA temp_store = MEMORY;
CREATE TABLE entries (id INTEGER PRIMARY KEY, link INTEGER, name TEXT);
WITH RECURSIVE numbers(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM numbers WHERE i + 1 < ROWS)
INSERT INTO entries SELECT i, (i * 7919 + 13) % ROWS, printf('name %08d of the entry, and some more text', i) FROM numbers;
CREATE INDEX by_link ON entries (link);
UPDATE entries SET name = name || '!' WHERE link % 3 = 0;
SELECT 'answer ' || count(*) || ' ' || sum(b.id - a.link) || ' ' || sum(length(b.name)) || ' ' || sum(a.id)
FROM entries a JOIN entries b ON b.id = a.link WHERE a.id % 16 = 0;
