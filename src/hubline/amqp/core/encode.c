/* Columns of events to messages: as they are, as Data sections of a batch, or as frames of deliveries.
 *
 * Properties whose names begin with "amqp:" have a place of their own in a message. Python makes messages that have
 * such: they are left to it by their index, and come back among those that are made already.
 */
#include "core.h"

#define SIZE_8_MAX 255

/* A column of byte strings or texts that Arrow has. */
typedef struct {
    const int32_t *ends; /* from the first row on; NULL where there is no such column */
    const uint8_t *bytes;
    const uint8_t *valid; /* NULL where no value is null */
    int64_t first;        /* of the rows, among the bits of `valid` */
    int64_t bytes_count;
} Texts;

/* What hubline/amqp/core/library.py calls Encoding: the same fields in the same order. */
typedef struct {
    int64_t count;
    Texts body, offset, key; /* without offsets, events have no position */
    const int64_t *sequences, *times; /* times in microseconds */
    const int32_t *map_ends; /* from the first row on */
    const uint8_t *map_valid;
    int64_t map_first;
    int64_t pairs_count;
    Texts names, values;
    Texts made;           /* messages that are there already; null for those to be made */
    const uint8_t *prefix; /* what each message begins with */
    int64_t prefix_size;
    int64_t is_section; /* each is a Data section */
    const uint8_t *before_id, *after_id; /* each is a frame: what is between its size, the delivery's id and it */
    int64_t before_id_size, after_id_size;
    uint64_t delivery_id;
    Column messages;
    int64_t next; /* the event to continue with */
    int64_t *others;
    int64_t others_count;
} Encoding;

static const uint8_t SEQUENCE_NAME[] = "\xA3\x15x-opt-sequence-number\x81";
static const uint8_t OFFSET_NAME[] = "\xA3\x0Cx-opt-offset";
static const uint8_t TIME_NAME[] = "\xA3\x13x-opt-enqueued-time\x83";
static const uint8_t KEY_NAME[] = "\xA3\x13x-opt-partition-key";
enum {
    SEQUENCE_SIZE = sizeof SEQUENCE_NAME - 1 + 8,
    OFFSET_NAME_SIZE = sizeof OFFSET_NAME - 1,
    TIME_SIZE = sizeof TIME_NAME - 1 + 8,
    KEY_NAME_SIZE = sizeof KEY_NAME - 1,
};

static bool is_there(const Texts *texts, int64_t row) {
    int64_t bit = texts->first + row;
    return texts->ends && (!texts->valid || texts->valid[bit / 8] >> bit % 8 & 1);
}

static Reader text_at(const Texts *texts, int64_t row) {
    int32_t start = texts->ends[row], end = texts->ends[row + 1];
    if (start < 0 || start >= end || end > texts->bytes_count)
        return (Reader){NULL, NULL};
    return (Reader){texts->bytes + start, texts->bytes + end};
}

/* Room is looked for once for each message: these write into it. */
static uint8_t *write(uint8_t *to, const void *bytes, int64_t size) {
    if (size)
        memcpy(to, bytes, (size_t)size);
    return to + size;
}

static uint8_t *write_number(uint8_t *to, uint64_t number, int width) {
    for (int shift = 8 * (width - 1); shift >= 0; shift -= 8)
        *to++ = (uint8_t)(number >> shift);
    return to;
}

static int64_t sized(int64_t size) { return size + (size <= SIZE_8_MAX ? 2 : 5); }

/* A string or binary after its code, that of the short form, and its size. */
static uint8_t *write_head(uint8_t *to, uint8_t code, int64_t size) {
    bool is_short = size <= SIZE_8_MAX;
    *to++ = is_short ? code : code + 0x10;
    return write_number(to, (uint64_t)size, is_short ? 1 : 4);
}

static uint8_t *write_text(uint8_t *to, uint8_t code, Reader text) {
    return write(write_head(to, code, left(&text)), text.at, left(&text));
}

/* A section that is a map: its size, of which the count of keys and values takes a part. */
static int64_t map_section(int64_t content, int64_t count) {
    return content + 3 + (content < SIZE_8_MAX && count <= SIZE_8_MAX ? 3 : 9);
}

static uint8_t *write_map_head(uint8_t *to, uint8_t section, int64_t content, int64_t count) {
    int width = content < SIZE_8_MAX && count <= SIZE_8_MAX ? 1 : 4;
    *to++ = DESCRIBED;
    *to++ = SMALL_ULONG;
    *to++ = section;
    *to++ = width == 1 ? MAP_8 : MAP_32;
    to = write_number(to, (uint64_t)(content + width), width);
    return write_number(to, (uint64_t)count, width);
}

/* One event and the sizes of its parts; those that are not there have none. */
typedef struct {
    Reader body, offset, key;
    bool has_key;
    int64_t annotations, annotations_count;
    int32_t pairs_start, pairs_end;
    int64_t properties;
    int64_t size;
} Event;

static bool measure_properties(const Encoding *run, Event *event, int64_t row) {
    int64_t bit = run->map_first + row;
    event->pairs_start = run->map_ends[row];
    event->pairs_end = run->map_ends[row + 1];
    if ((run->map_valid && !(run->map_valid[bit / 8] >> bit % 8 & 1)) || event->pairs_start < 0 ||
        event->pairs_end > run->pairs_count)
        event->pairs_end = event->pairs_start;
    event->properties = 0;
    for (int32_t pair = event->pairs_start; pair < event->pairs_end; pair++) {
        Reader name = text_at(&run->names, pair);
        if (left(&name) >= 5 && memcmp(name.at, "amqp:", 5) == 0)
            return false;
        Reader value = text_at(&run->values, pair);
        event->properties += sized(left(&name)) + (is_there(&run->values, pair) ? sized(left(&value)) : 1);
    }
    return true;
}

static bool measure(const Encoding *run, Event *event, int64_t row) {
    memset(event, 0, sizeof *event);
    if (!measure_properties(run, event, row))
        return false;
    event->body = text_at(&run->body, row);
    event->has_key = is_there(&run->key, row);
    if (event->has_key) {
        event->key = text_at(&run->key, row);
        event->annotations += KEY_NAME_SIZE + sized(left(&event->key));
        event->annotations_count += 2;
    }
    if (run->offset.ends) {
        event->offset = text_at(&run->offset, row);
        event->annotations += SEQUENCE_SIZE + OFFSET_NAME_SIZE + sized(left(&event->offset)) + TIME_SIZE;
        event->annotations_count += 6;
    }
    event->size = 3 + sized(left(&event->body));
    if (event->annotations)
        event->size += map_section(event->annotations, event->annotations_count);
    if (event->properties)
        event->size += map_section(event->properties, 2 * (int64_t)(event->pairs_end - event->pairs_start));
    return true;
}

static uint8_t *write_annotations(uint8_t *to, const Encoding *run, const Event *event, int64_t row) {
    to = write_map_head(to, 0x72, event->annotations, event->annotations_count);
    if (run->offset.ends) {
        int64_t time = run->times[row];
        to = write(to, SEQUENCE_NAME, sizeof SEQUENCE_NAME - 1);
        to = write_number(to, (uint64_t)run->sequences[row], 8);
        to = write(to, OFFSET_NAME, OFFSET_NAME_SIZE);
        to = write_text(to, STRING_8, event->offset);
        to = write(to, TIME_NAME, sizeof TIME_NAME - 1);
        to = write_number(to, (uint64_t)(time / 1000 - (time % 1000 < 0)), 8);
    }
    if (event->has_key)
        to = write_text(write(to, KEY_NAME, KEY_NAME_SIZE), STRING_8, event->key);
    return to;
}

static uint8_t *write_properties(uint8_t *to, const Encoding *run, const Event *event) {
    to = write_map_head(to, 0x74, event->properties, 2 * (int64_t)(event->pairs_end - event->pairs_start));
    for (int32_t pair = event->pairs_start; pair < event->pairs_end; pair++) {
        to = write_text(to, STRING_8, text_at(&run->names, pair));
        if (is_there(&run->values, pair))
            to = write_text(to, STRING_8, text_at(&run->values, pair));
        else
            *to++ = NULL_VALUE;
    }
    return to;
}

static uint8_t *write_message(uint8_t *to, const Encoding *run, const Event *event, int64_t row) {
    static const uint8_t DATA[] = {DESCRIBED, SMALL_ULONG, 0x75};
    if (event->annotations)
        to = write_annotations(to, run, event, row);
    if (event->properties)
        to = write_properties(to, run, event);
    return write_text(write(to, DATA, sizeof DATA), BINARY_8, event->body);
}

/* What stands before a message: the head of a Data section, or the header of a frame and its transfer. */
static int64_t head_size(const Encoding *run, int64_t size) {
    if (run->before_id)
        return 4 + run->before_id_size + 4 + run->after_id_size;
    return run->is_section ? 3 + sized(size) - size : 0;
}

static uint8_t *write_message_head(uint8_t *to, const Encoding *run, int64_t size, int64_t row) {
    static const uint8_t DATA[] = {DESCRIBED, SMALL_ULONG, 0x75};
    if (run->before_id) {
        to = write_number(to, (uint64_t)(head_size(run, size) + size), 4);
        to = write(to, run->before_id, run->before_id_size);
        to = write_number(to, (run->delivery_id + (uint64_t)row) & 0xFFFFFFFFu, 4);
        return write(to, run->after_id, run->after_id_size);
    }
    return run->is_section ? write_head(write(to, DATA, sizeof DATA), BINARY_8, size) : to;
}

static bool encode_event(Encoding *run, int64_t row) {
    Event event;
    bool is_made = is_there(&run->made, row);
    Reader made = is_made ? text_at(&run->made, row) : (Reader){NULL, NULL};
    if (!is_made && !measure(run, &event, row)) {
        run->others[run->others_count++] = row;
        return end_row(&run->messages, true);
    }
    int64_t size = run->prefix_size + (is_made ? left(&made) : event.size), whole = head_size(run, size) + size;
    if (!has_room(&run->messages, whole))
        return false;
    uint8_t *to = run->messages.bytes + run->messages.bytes_count;
    to = write(write_message_head(to, run, size, row), run->prefix, run->prefix_size);
    if (is_made)
        write(to, made.at, left(&made));
    else
        write_message(to, run, &event, row);
    run->messages.bytes_count += whole;
    return end_row(&run->messages, true);
}

/* Encodes from `next` on. Ends early where the messages want room, as hubline_decode does. */
EXPORT int hubline_encode(Encoding *run) {
    for (; run->next < run->count; run->next++)
        if (!encode_event(run, run->next))
            return 0;
    return 1;
}
