/* Frames among received bytes, and Data sections of a batch: where each starts, and which frames are simple transfers.
 *
 * A transfer is simple if its frame holds all of its message, and it says nothing that has to be acted on. All other
 * frames are left to Python, and so is what is wrong with any.
 */
#include "core.h"

enum { FRAME_HEADER = 8, TRANSFER = 0x14 };

/* What hubline/amqp/core/library.py calls Frames: the same fields in the same order. */
typedef struct {
    const uint8_t *data;
    int64_t start, end; /* where the bytes are that have arrived */
    int64_t size_min, size_max;
    int64_t count;      /* of complete frames */
    int64_t impossible; /* the size of a frame that cannot be, and none after it is looked at; -1 if there is none */
    int64_t *bounds;    /* one more than there are frames */
    int64_t *links, *delivery_ids, *payloads;
    uint8_t *is_simple, *is_settled;
} Frames;

/* What the same module calls Sections. */
typedef struct {
    const uint8_t *data;
    int64_t start, end;
    int64_t count;
    int64_t *starts, *ends; /* NULL: they are only counted */
} Sections;

static bool take_uint(Reader *reader, uint64_t *number) {
    uint8_t code;
    *number = 0;
    if (!take_code(reader, &code))
        return false;
    switch (code) {
    case UINT_0: return true;
    case SMALL_UINT: return take_number(reader, 1, number);
    case UINT: return take_number(reader, 4, number);
    default: return false;
    }
}

/* A field that may be missing at the end of the list, or null: then it is false. */
static bool take_flag(Reader *reader, uint64_t *left_fields, bool *flag) {
    uint8_t code;
    uint64_t bits = 0;
    *flag = false;
    if (!*left_fields)
        return true;
    --*left_fields;
    if (!take_code(reader, &code) || (code == BOOLEAN && (!take_number(reader, 1, &bits) || bits > 1)))
        return false;
    *flag = code == TRUE_VALUE || bits;
    return code == TRUE_VALUE || code == FALSE_VALUE || code == NULL_VALUE || code == BOOLEAN;
}

static bool take_null(Reader *reader, uint64_t *left_fields) {
    uint8_t code;
    if (!*left_fields)
        return true;
    --*left_fields;
    return take_code(reader, &code) && code == NULL_VALUE;
}

/* The fields of a transfer: handle, delivery id, tag, format, settled, more, settle mode, state, resume, aborted and
 * batchable. */
static bool take_transfer(Reader *reader, uint64_t *handle, uint64_t *delivery_id, bool *is_settled) {
    static const uint8_t DESCRIPTOR[] = {DESCRIBED, SMALL_ULONG, TRANSFER};
    uint8_t code;
    uint64_t count, format;
    bool is_more, is_resumed, is_aborted, is_batchable;
    Reader fields, tag;
    if (left(reader) < 4 || memcmp(reader->at, DESCRIPTOR, sizeof DESCRIPTOR) != 0)
        return false;
    reader->at += sizeof DESCRIPTOR;
    if (!take_code(reader, &code) || (code != LIST_8 && code != LIST_32) ||
        !take_sized(reader, size_width(code), &fields) || !take_number(&fields, size_width(code), &count) ||
        count < 3 || count > 11)
        return false;
    if (!take_uint(&fields, handle) || !take_uint(&fields, delivery_id) || !take_code(&fields, &code) ||
        !is_binary(code) || !take_sized(&fields, size_width(code), &tag))
        return false;
    count -= 3;
    if (count && fields.at < fields.end && *fields.at != NULL_VALUE) {
        if (!take_uint(&fields, &format) || format)
            return false;
        count--;
    } else if (!take_null(&fields, &count)) {
        return false;
    }
    return take_flag(&fields, &count, is_settled) && take_flag(&fields, &count, &is_more) && !is_more &&
           take_null(&fields, &count) && take_null(&fields, &count) && take_flag(&fields, &count, &is_resumed) &&
           !is_resumed && take_flag(&fields, &count, &is_aborted) && !is_aborted &&
           take_flag(&fields, &count, &is_batchable) && fields.at == fields.end;
}

static void read_frame(Frames *frames, int64_t index, int64_t start, int64_t end) {
    Reader reader = {frames->data + start + FRAME_HEADER, frames->data + end};
    const uint8_t *header = frames->data + start;
    uint64_t handle = 0, delivery_id = 0;
    bool is_settled = false;
    /* The body follows the header, and the frame is AMQP's. */
    bool is_simple = header[4] == 2 && header[5] == 0 && take_transfer(&reader, &handle, &delivery_id, &is_settled);
    frames->is_simple[index] = is_simple;
    frames->is_settled[index] = is_simple && is_settled;
    frames->links[index] = (int64_t)(big_endian(header + 6, 2) << 32 | handle);
    frames->delivery_ids[index] = (int64_t)delivery_id;
    frames->payloads[index] = reader.at - frames->data;
}

/* Counts the complete frames; or reads so many, if there is a place for what they are. */
EXPORT void hubline_frames(Frames *frames) {
    int64_t at = frames->start, count = 0;
    frames->impossible = -1;
    while (frames->end - at >= 4 && (!frames->bounds || count < frames->count)) {
        int64_t size = (int64_t)big_endian(frames->data + at, 4);
        if (size < FRAME_HEADER || size < frames->size_min || size > frames->size_max) {
            frames->impossible = size;
            break;
        }
        if (size > frames->end - at)
            break;
        if (frames->bounds) {
            frames->bounds[count] = at;
            read_frame(frames, count, at, at + size);
        }
        at += size;
        count++;
    }
    if (frames->bounds)
        frames->bounds[count] = at;
    frames->count = count;
}

/* Counts Data sections of bytes that follow each other, or notes where they are; up to what is something else. */
EXPORT void hubline_sections(Sections *sections) {
    static const uint8_t DATA[] = {DESCRIBED, SMALL_ULONG, 0x75};
    Reader reader = {sections->data + sections->start, sections->data + sections->end}, content;
    int64_t count = 0;
    for (; !sections->starts || count < sections->count; count++) {
        Reader next = reader;
        if (left(&next) < 4 || memcmp(next.at, DATA, sizeof DATA) != 0)
            break;
        uint8_t code = next.at[3];
        next.at += 4;
        if (!is_binary(code) || !take_sized(&next, size_width(code), &content))
            break;
        if (sections->starts) {
            sections->starts[count] = content.at - sections->data;
            sections->ends[count] = content.end - sections->data;
        }
        reader = next;
    }
    sections->start = reader.at - sections->data;
    sections->count = count;
}
