// page_content.h - what the pages of the victims hold, and how one is checked.
//
// The content of a page is a function of its identity (seed, region, index, version, kind) and not of its address, so
// it may be moved by mremap and still be checked. All 4096 bytes are rendered again and compared. Every kind but the
// zero page names itself: text, half-random and random pages open with a label, a same-filled page repeats a word that
// no other identity has. So a wrong page can be told: zeroed, stale (an older version), another page's, or torn.
#ifndef PAGE_CONTENT_H
#define PAGE_CONTENT_H
#include "victim.h"

enum page_kind { KIND_ZERO, KIND_SAME_FILLED, KIND_TEXT, KIND_HALF_RANDOM, KIND_RANDOM, KIND_COUNT };

static const char *const kind_names[KIND_COUNT] = { "zero", "same-filled", "text", "half-random", "random" };

struct page_identity {
    uint64_t seed;
    uint32_t region;
    uint32_t index;
    uint32_t version;
    uint32_t kind;
};

#define LABEL_MAGIC 0x6567617020656874u // "the page" in memory

struct page_label {
    uint64_t magic;
    struct page_identity is;
    uint64_t checksum; // of the bytes that follow
};

static inline uint64_t identity_hash(const struct page_identity *is)
{
    uint64_t hash = mix64(is->seed ^ 0x5eed);
    hash = mix64(hash ^ ((uint64_t)is->region << 32 | is->index));
    return mix64(hash ^ ((uint64_t)is->version << 32 | is->kind));
}

static inline void render_words(uint64_t *to, size_t words, uint64_t state)
{
    for (size_t i = 0; i < words; i++)
        to[i] = next_random(&state);
}

#define WORD(text) { text, sizeof text - 1 }

// Eight bytes at a time, of which the next word overwrites what is too much: programs spend most of their time here.
static inline void render_text(unsigned char *to, size_t bytes, uint64_t state)
{
    static const struct {
        char letters[8];
        uint8_t length;
    } words[16] = { WORD("page "),  WORD("swap "), WORD("the "),  WORD("cold "), WORD("memory "), WORD("kernel "),
                    WORD("of "),    WORD("fault "), WORD("write "), WORD("back "), WORD("slot "),   WORD("and "),
                    WORD("pool "),  WORD("reads "), WORD("to "),   WORD("evicts ") };
    size_t filled = 0;
    uint64_t choice = 0;
    while (filled < bytes) {
        choice = choice < 16 ? next_random(&state) : choice >> 4;
        if (bytes - filled < sizeof words->letters)
            memcpy(to + filled, words[choice & 15].letters, bytes - filled);
        else
            memcpy(to + filled, words[choice & 15].letters, sizeof words->letters);
        filled += words[choice & 15].length;
    }
}

static inline uint64_t checksum_words(const uint64_t *words, size_t count)
{
    uint64_t sum = 1;
    for (size_t i = 0; i < count; i++)
        sum = (sum ^ words[i]) * 0x100000001b3u;
    return sum;
}

static inline uint64_t label_checksum(const void *page)
{
    return checksum_words((const uint64_t *)((const char *)page + sizeof(struct page_label)),
                          (PAGE - sizeof(struct page_label)) / 8);
}

static inline void render_body(unsigned char *body, size_t bytes, const struct page_identity *is, uint64_t hash)
{
    size_t random_part = is->kind == KIND_RANDOM ? bytes : is->kind == KIND_HALF_RANDOM ? bytes / 2 & ~(size_t)7 : 0;
    render_words((uint64_t *)body, random_part / 8, hash);
    render_text(body + random_part, bytes - random_part, hash);
}

// `out` must be 8-byte aligned and hold a page.
static inline void page_render(void *out, const struct page_identity *is)
{
    uint64_t hash = identity_hash(is);
    if (is->kind == KIND_ZERO) {
        memset(out, 0, PAGE);
    } else if (is->kind == KIND_SAME_FILLED) {
        for (size_t i = 0; i < PAGE / 8; i++)
            ((uint64_t *)out)[i] = hash;
    } else {
        struct page_label *label = out;
        *label = (struct page_label){ .magic = LABEL_MAGIC, .is = *is };
        render_body((unsigned char *)out + sizeof *label, PAGE - sizeof *label, is, hash);
        label->checksum = label_checksum(out);
    }
}

static inline bool page_matches(const void *page, const struct page_identity *is)
{
    uint64_t expected[PAGE / 8];
    page_render(expected, is);
    return memcmp(page, expected, PAGE) == 0;
}

static inline bool page_is_filled_with_one_word(const uint64_t *words)
{
    for (size_t i = 1; i < PAGE / 8; i++)
        if (words[i] != words[0])
            return false;
    return true;
}

// Says what a wrong page is, as far as it can be told from its bytes.
static inline void page_describe(const void *copy, char *out, size_t size)
{
    const struct page_label *label = copy;
    const uint64_t *words = copy;
    if (page_is_filled_with_one_word(words)) {
        if (words[0] == 0)
            snprintf(out, size, "a page of zeros");
        else
            snprintf(out, size, "a page filled with the word %#llx", (unsigned long long)words[0]);
    } else if (label->magic == LABEL_MAGIC && label->is.kind < KIND_COUNT) {
        snprintf(out, size, "%s of region %u page %u version %u (%s, seed %llu)",
                 label->checksum == label_checksum(copy) ? "the whole content" : "a torn content", label->is.region,
                 label->is.index, label->is.version, kind_names[label->is.kind], (unsigned long long)label->is.seed);
    } else {
        snprintf(out, size, "bytes without a label");
    }
}

static inline size_t first_difference(const unsigned char *a, const unsigned char *b)
{
    size_t at = 0;
    while (at < PAGE && a[at] == b[at])
        at++;
    return at;
}

__attribute__((noreturn)) static inline void page_fail(const void *page, const struct page_identity *is,
                                                       const char *when)
{
    uint64_t expected[PAGE / 8], found[PAGE / 8];
    char description[200];
    page_render(expected, is);
    memcpy(found, page, PAGE);
    size_t at = first_difference((unsigned char *)expected, (unsigned char *)found);
    page_describe(found, description, sizeof description);
    if (at == PAGE)
        fail("%s: page %p (region %u, page %u): expected version %u (%s), the first look found other bytes, a second "
             "look found the right ones",
             when, page, is->region, is->index, is->version, kind_names[is->kind]);
    sleep_micros(20000);
    bool healed = memcmp(page, expected, PAGE) == 0;
    fail("%s: page %p (region %u, page %u): expected version %u (%s), found %s; first difference at byte %zu: expected "
         "%#x, found %#x; 20 ms later it is %s",
         when, page, is->region, is->index, is->version, kind_names[is->kind], description, at,
         ((unsigned char *)expected)[at], ((unsigned char *)found)[at], healed ? "right" : "still wrong");
}

static inline void page_require(const void *page, const struct page_identity *is, const char *when)
{
    if (!page_matches(page, is))
        page_fail(page, is, when);
}

static inline void page_require_zero(const void *page, uint32_t region, uint32_t index, const char *when)
{
    struct page_identity zero = { .region = region, .index = index, .kind = KIND_ZERO };
    page_require(page, &zero, when);
}

// ---- ranges: for the programs that need no record of each page -----------------------------------------------------

static inline uint32_t usual_kind(uint64_t chance)
{
    static const uint8_t kinds[16] = { KIND_ZERO,        KIND_SAME_FILLED, KIND_TEXT,   KIND_TEXT,
                                       KIND_TEXT,        KIND_TEXT,        KIND_TEXT,   KIND_TEXT,
                                       KIND_HALF_RANDOM, KIND_HALF_RANDOM, KIND_RANDOM, KIND_HALF_RANDOM,
                                       KIND_RANDOM,      KIND_RANDOM,      KIND_RANDOM, KIND_HALF_RANDOM };
    return kinds[chance & 15];
}

// The identity of page `index` of a region all of whose pages have the same version. Its kind differs from page to page.
static inline struct page_identity usual_identity(uint32_t region, uint32_t index, uint32_t version)
{
    uint32_t kind = usual_kind(mix64((uint64_t)region << 40 ^ (uint64_t)version << 20 ^ index));
    return (struct page_identity){ .region = region, .index = index, .version = version, .kind = kind };
}

static inline void fill_pages(void *base, size_t first, size_t count, uint32_t region, uint32_t version)
{
    for (size_t i = first; i < first + count; i++) {
        struct page_identity is = usual_identity(region, (uint32_t)i, version);
        page_render((char *)base + i * PAGE, &is);
    }
}

static inline void require_pages(const void *base, size_t first, size_t count, uint32_t region, uint32_t version,
                                 const char *when)
{
    for (size_t i = first; i < first + count; i++) {
        struct page_identity is = usual_identity(region, (uint32_t)i, version);
        page_require((const char *)base + i * PAGE, &is, when);
    }
}

static inline void require_zero_pages(const void *base, size_t first, size_t count, uint32_t region, const char *when)
{
    for (size_t i = first; i < first + count; i++)
        page_require_zero((const char *)base + i * PAGE, region, (uint32_t)i, when);
}

#endif
