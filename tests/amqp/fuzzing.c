/* Damaged messages and frames against the core, under sanitizers: fuzzing CORPUS EXECUTIONS SEED.
 *
 * The corpus is messages and streams of frames, each after its size in four bytes, the least first. The bytes that the
 * core reads end where their memory does, and so does the room that it writes into: the address sanitizer sees any byte
 * beyond them. What was decoded is encoded, and decoded once more: it has to be the same.
 */
#include "decode.c"
#include "encode.c"
#include "frames.c"

#include <stdio.h>
#include <stdlib.h>

enum { MESSAGE_MAX = 4096, BATCH_MAX = 4, ROOM_MAX = 1 << 16 };

static uint64_t state;

static uint32_t below(uint32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(((state >> 33) * limit) >> 31);
}

static void require(bool condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "wrong: %s\n", what);
        abort();
    }
}

typedef struct {
    const uint8_t *bytes;
    uint32_t size;
} Original;

static uint32_t damage(uint8_t *message, uint32_t size, const Original *other) {
    static const uint8_t TELLING[] = {0, 1, 0x40, 0x45, 0x53, 0x7F, 0x80, 0xA1, 0xB0, 0xC0, 0xC1, 0xD1, 0xE0, 0xF0, 0xFF};
    for (uint32_t left_over = below(5); left_over && size; left_over--) {
        uint32_t at = below(size), count = below(8);
        switch (below(7)) {
        case 0: message[at] = (uint8_t)below(256); break;
        case 1: message[at] ^= (uint8_t)(1 << below(8)); break;
        case 2: message[at] = TELLING[below(sizeof TELLING)]; break;
        case 3: size = at; break;
        case 4: /* a piece out of it */
            count = count < size - at ? count : size - at;
            memmove(message + at, message + at + count, size - at - count);
            size -= count;
            break;
        case 5: /* a piece of it twice */
            count = count < size - at ? count : size - at;
            if (size + count > MESSAGE_MAX)
                break;
            memmove(message + at + count, message + at, size - at);
            size += count;
            break;
        default: /* another's end */
            if (at < other->size) {
                memcpy(message + at, other->bytes + at, other->size - at);
                size = other->size;
            }
        }
    }
    return size;
}

/* A column whose memory ends where its room does. */
typedef struct {
    int32_t *ends;
    uint8_t *bytes, *valid;
} Memory;

static void place(Column *column, const Memory *memory, int64_t rows, int64_t bytes, bool has_nulls) {
    memset(column, 0, sizeof *column);
    column->ends = memory->ends + (ROOM_MAX - rows);
    column->bytes = memory->bytes + (ROOM_MAX - bytes);
    column->valid = has_nulls ? memory->valid + (ROOM_MAX / 8 - rows / 8) : NULL;
    column->rows_max = rows;
    column->bytes_max = bytes;
    column->ends[0] = 0;
}

static void check(const Column *column, int64_t rows) {
    require(column->rows == rows && column->rows <= column->rows_max, "the rows of a column");
    require(column->bytes_count <= column->bytes_max, "the bytes of a column");
    require(column->ends[column->rows] == column->bytes_count, "the end of a column");
    for (int64_t row = 0; row < rows; row++)
        require(column->ends[row] <= column->ends[row + 1], "the ends of a column");
}

static Memory memories[COLUMNS_COUNT], again[COLUMNS_COUNT], encoded;
static uint8_t *messages;

static Texts texts_of(const Column *column) {
    return (Texts){column->ends, column->bytes, column->null_count ? column->valid : NULL, 0, column->bytes_count};
}

static void require_same(const Column *one, const Column *other, int64_t rows) {
    require(one->rows == rows && other->rows == rows, "the rows of an event that was encoded");
    for (int64_t row = 0; row < rows; row++) {
        Reader here = {one->bytes + one->ends[row], one->bytes + one->ends[row + 1]};
        require(is_equal(here, (const char *)other->bytes + other->ends[row], other->ends[row + 1] - other->ends[row]),
                "what was encoded");
        if (one->valid)
            require((one->valid[row / 8] ^ other->valid[row / 8]) >> row % 8 & 1 ? false : true, "a null");
    }
}

static void there_and_back(const Decoding *run) {
    int64_t others[BATCH_MAX], microseconds[BATCH_MAX];
    for (int64_t row = 0; row < run->taken && run->has_position; row++) {
        microseconds[row] = run->times[row] % 1000000000000000 * 1000;
        run->times[row] = microseconds[row] / 1000;
    }
    Encoding encoding = {.count = run->taken, .body = texts_of(&run->body), .key = texts_of(&run->key),
                         .names = texts_of(&run->names), .values = texts_of(&run->values), .map_ends = run->map_ends,
                         .map_valid = run->map_valid, .pairs_count = run->names.rows, .others = others};
    if (run->has_position) {
        encoding.offset = texts_of(&run->offset);
        encoding.sequences = run->sequences;
        encoding.times = microseconds;
    }
    encoding.is_section = below(2);
    int64_t room = below(4) ? ROOM_MAX : below(512);
    place(&encoding.messages, &encoded, run->taken, room, false);
    if (!hubline_encode(&encoding) || encoding.others_count || !run->taken)
        return;
    check(&encoding.messages, run->taken);
    int64_t starts[BATCH_MAX + 1], ends[BATCH_MAX + 1], sequences[BATCH_MAX], times[BATCH_MAX];
    int32_t map_ends[BATCH_MAX + 1] = {0};
    uint8_t map_valid[BATCH_MAX / 8 + 1];
    for (int64_t row = 0; row < run->taken; row++) {
        starts[row] = encoding.messages.ends[row];
        ends[row] = encoding.messages.ends[row + 1];
    }
    if (encoding.is_section) {
        Sections sections = {encoding.messages.bytes, 0, encoding.messages.bytes_count, BATCH_MAX, starts, ends};
        hubline_sections(&sections);
        require(sections.count == run->taken && sections.start == encoding.messages.bytes_count, "sections");
    }
    Decoding back = {.data = encoding.messages.bytes, .data_size = encoding.messages.bytes_count, .starts = starts,
                     .ends = ends, .count = run->taken, .has_position = run->has_position, .map_ends = map_ends,
                     .map_valid = map_valid, .sequences = sequences, .times = times, .others = others};
    for (int index = 0; index < COLUMNS_COUNT; index++)
        place(column_of(&back, index), &again[index], index < 3 ? run->taken : 4096, ROOM_MAX, index == 2 || index == 4);
    require(hubline_decode(&back) && back.taken == run->taken, "events that were encoded");
    require_same(&run->body, &back.body, run->taken);
    require_same(&run->key, &back.key, run->taken);
    require_same(&run->names, &back.names, run->names.rows);
    require_same(&run->values, &back.values, run->values.rows);
    for (int64_t row = 0; row < run->taken && run->has_position; row++)
        require(sequences[row] == run->sequences[row] && times[row] == run->times[row], "a position");
}

static void read_stream(const uint8_t *data, int64_t size) {
    static int64_t *numbers;
    enum { PLACES_MAX = BATCH_MAX * MESSAGE_MAX / 4 };
    if (!numbers)
        numbers = malloc(PLACES_MAX * sizeof *numbers);
    Frames frames = {.data = data, .end = size, .size_max = 1 << 20};
    hubline_frames(&frames);
    int64_t count = frames.count;
    uint8_t *flags = (uint8_t *)(numbers + PLACES_MAX) - 2 * count;
    int64_t *places = numbers + PLACES_MAX - (4 * count + 1) - (2 * count + 7) / 8;
    frames.bounds = places;
    frames.links = places + count + 1;
    frames.delivery_ids = frames.links + count;
    frames.payloads = frames.delivery_ids + count;
    frames.is_simple = flags;
    frames.is_settled = flags + count;
    hubline_frames(&frames);
    require(frames.count == count, "the count of frames");
    for (int64_t index = 0; index < count; index++) {
        require(frames.bounds[index] + 8 <= frames.bounds[index + 1] && frames.bounds[index + 1] <= size, "bounds");
        require(frames.payloads[index] <= frames.bounds[index + 1], "a payload");
    }
    Sections sections = {.data = data, .end = size};
    hubline_sections(&sections);
    require(sections.start <= size, "the end of sections");
}

static int execute(const Original *corpus, uint32_t corpus_count) {
    static uint8_t made[BATCH_MAX][MESSAGE_MAX];
    uint32_t sizes[BATCH_MAX], count = 1 + below(BATCH_MAX), total = 0;
    for (uint32_t index = 0; index < count; index++) {
        const Original *original = &corpus[below(corpus_count)];
        memcpy(made[index], original->bytes, original->size);
        sizes[index] = damage(made[index], original->size, &corpus[below(corpus_count)]);
        total += sizes[index];
    }
    int64_t starts[BATCH_MAX], ends[BATCH_MAX], others[BATCH_MAX], sequences[BATCH_MAX], times[BATCH_MAX];
    int32_t map_ends[BATCH_MAX + 1] = {0};
    uint8_t map_valid[BATCH_MAX / 8 + 1];
    uint8_t *data = messages + BATCH_MAX * MESSAGE_MAX - total;
    for (uint32_t index = 0, at = 0; index < count; at += sizes[index++]) {
        memcpy(data + at, made[index], sizes[index]);
        starts[index] = at;
        ends[index] = at + sizes[index];
    }
    Decoding run = {.data = data, .data_size = total, .starts = starts, .ends = ends, .count = count,
                    .has_position = below(2), .map_ends = map_ends, .map_valid = map_valid, .sequences = sequences,
                    .times = times, .others = others};
    run.takes_notes = !run.has_position;
    bool is_small = below(4) == 0;
    int64_t room = is_small ? below(64) : ROOM_MAX;
    for (int index = 0; index < COLUMNS_COUNT; index++)
        place(column_of(&run, index), &memories[index], index < 3 ? count : is_small ? below(8) : 4096, room,
              index == 2 || index == 4);
    if (!hubline_decode(&run)) {
        require(is_small, "room is wanted where there is enough");
        count = (uint32_t)run.next;
    }
    require(run.taken + run.others_count == count && map_ends[run.taken] == run.names.rows, "the rows of a run");
    check(&run.body, run.taken);
    check(&run.offset, run.has_position ? run.taken : 0);
    check(&run.key, run.taken);
    check(&run.names, map_ends[run.taken]);
    check(&run.values, map_ends[run.taken]);
    for (int64_t row = 0; row < run.values.rows; row++) {
        Reader text = {run.values.bytes + run.values.ends[row], run.values.bytes + run.values.ends[row + 1]};
        require(is_utf8(text), "the text of a value");
    }
    there_and_back(&run);
    read_stream(data, total);
    return (int)run.taken;
}

int main(int count, char **arguments) {
    static uint8_t file[1 << 20];
    static Original corpus[4096];
    FILE *opened = count == 4 ? fopen(arguments[1], "rb") : NULL;
    require(opened, "fuzzing CORPUS EXECUTIONS SEED");
    size_t size = fread(file, 1, sizeof file, opened);
    fclose(opened);
    uint32_t corpus_count = 0;
    for (size_t at = 0; at + 4 <= size && corpus_count < 4096; corpus_count++) {
        uint32_t length = file[at] | (uint32_t)file[at + 1] << 8 | (uint32_t)file[at + 2] << 16;
        require(length <= MESSAGE_MAX && at + 4 + length <= size, "the corpus");
        corpus[corpus_count] = (Original){file + at + 4, length};
        at += 4 + length;
    }
    require(corpus_count, "an empty corpus");
    messages = malloc(BATCH_MAX * MESSAGE_MAX);
    for (int index = 0; index <= 2 * COLUMNS_COUNT; index++) {
        Memory *memory = index < COLUMNS_COUNT ? &memories[index] : &again[index - COLUMNS_COUNT];
        *(index == 2 * COLUMNS_COUNT ? &encoded : memory) =
            (Memory){malloc(4 * (ROOM_MAX + 1)), malloc(ROOM_MAX), malloc(ROOM_MAX / 8 + 1)};
    }
    long long executions = atoll(arguments[2]), taken = 0;
    state = (uint64_t)atoll(arguments[3]) * 2 + 1;
    for (long long done = 0; done < executions; done++)
        taken += execute(corpus, corpus_count);
    printf("%lld executions, %lld events taken\n", executions, taken);
    return 0;
}
