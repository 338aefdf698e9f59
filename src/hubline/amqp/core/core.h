/* What the parts of the core share: bytes that are read, and columns that are written.
 *
 * Functions that return `bool` return false for what they do not take: malformed bytes, what is rare, and what there is
 * no room for. Nobody here says what is wrong: the caller in Python reads such a message once more, in its own way.
 */
#ifndef HUBLINE_CORE_H
#define HUBLINE_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__)
#define EXPORT __attribute__((visibility("default")))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#else
#define EXPORT
#define LIKELY(condition) (condition)
#endif

/* Type codes. */
enum {
    DESCRIBED = 0x00, NULL_VALUE = 0x40, TRUE_VALUE = 0x41, FALSE_VALUE = 0x42, UINT_0 = 0x43, ULONG_0 = 0x44,
    LIST_0 = 0x45, UBYTE = 0x50, BYTE = 0x51, SMALL_UINT = 0x52, SMALL_ULONG = 0x53, SMALL_INT = 0x54,
    SMALL_LONG = 0x55, BOOLEAN = 0x56, USHORT = 0x60, SHORT = 0x61, UINT = 0x70, INT = 0x71, FLOAT = 0x72, CHAR = 0x73,
    DECIMAL_32 = 0x74, ULONG = 0x80, LONG = 0x81, DOUBLE = 0x82, TIMESTAMP = 0x83, DECIMAL_64 = 0x84,
    DECIMAL_128 = 0x94, UUID = 0x98, BINARY_8 = 0xA0, STRING_8 = 0xA1, SYMBOL_8 = 0xA3, BINARY_32 = 0xB0,
    STRING_32 = 0xB1, SYMBOL_32 = 0xB3, LIST_8 = 0xC0, MAP_8 = 0xC1, LIST_32 = 0xD0, MAP_32 = 0xD1, ARRAY_8 = 0xE0,
    ARRAY_32 = 0xF0
};

/* Bytes still to be read. Nothing is read at or after `end`. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} Reader;

/* A column of byte strings as Arrow lays it out, in memory of the caller's. Where that is too small, the core says how
 * much it wants, and goes on with the same message once it is there. The bytes of the row that is being written are
 * those after `ends[rows]`. */
typedef struct {
    int32_t *ends;  /* one more than there are rows: the first is 0 */
    uint8_t *bytes;
    uint8_t *valid; /* one bit a row; NULL where no value is null */
    int64_t rows_max, bytes_max;
    int64_t rows, bytes_count, null_count;
    int64_t rows_wanted, bytes_wanted;
} Column;

static inline int64_t left(const Reader *reader) { return reader->end - reader->at; }

static inline bool take_code(Reader *reader, uint8_t *code) {
    if (reader->at >= reader->end)
        return false;
    *code = *reader->at++;
    return true;
}

/* A part of the bytes, as a reader of its own. */
static inline bool take_part(Reader *reader, int64_t size, Reader *part) {
    if (size > left(reader))
        return false;
    part->at = reader->at;
    part->end = reader->at += size;
    return true;
}

static inline uint64_t big_endian(const uint8_t *at, int width) {
    uint64_t number = 0;
    for (int index = 0; index < width; index++)
        number = number << 8 | at[index];
    return number;
}

static inline bool take_number(Reader *reader, int width, uint64_t *number) {
    if (width > left(reader))
        return false;
    *number = big_endian(reader->at, width);
    reader->at += width;
    return true;
}

/* What a size of 1 or 4 bytes counts: the content of a string, a list, a map or an array. */
static inline bool take_sized(Reader *reader, int width, Reader *content) {
    uint64_t size;
    return take_number(reader, width, &size) && take_part(reader, (int64_t)size, content);
}

/* For codes from 0xA0 on: the size of the size. */
static inline int size_width(uint8_t code) { return code & 0x10 ? 4 : 1; }

static inline bool is_text(uint8_t code) {
    return code == STRING_8 || code == SYMBOL_8 || code == STRING_32 || code == SYMBOL_32;
}

static inline bool is_binary(uint8_t code) { return code == BINARY_8 || code == BINARY_32; }

static inline bool is_equal(Reader text, const char *name, int64_t size) {
    return left(&text) == size && memcmp(text.at, name, (size_t)size) == 0;
}

/* Room for more bytes in the row that is being written. */
static inline bool has_room(Column *column, int64_t size) {
    if (LIKELY(size <= column->bytes_max - column->bytes_count))
        return true;
    column->bytes_wanted = column->bytes_count + size;
    return false;
}

static inline bool put(Column *column, const void *bytes, int64_t size) {
    if (!has_room(column, size))
        return false;
    if (size)
        memcpy(column->bytes + column->bytes_count, bytes, (size_t)size);
    column->bytes_count += size;
    return true;
}

static inline bool put_text(Column *column, const char *text) { return put(column, text, (int64_t)strlen(text)); }

static inline void set_valid(uint8_t *valid, int64_t row, bool is_valid) {
    if (row % 8 == 0)
        valid[row / 8] = 0;
    if (is_valid)
        valid[row / 8] |= (uint8_t)(1 << row % 8);
    else
        valid[row / 8] &= (uint8_t)~(1 << row % 8);
}

static inline bool end_row(Column *column, bool is_valid) {
    if (column->rows >= column->rows_max) {
        column->rows_wanted = column->rows + 1;
        return false;
    }
    if (column->valid) {
        set_valid(column->valid, column->rows, is_valid);
        column->null_count += !is_valid;
    }
    column->ends[++column->rows] = (int32_t)column->bytes_count;
    return true;
}

/* text.c */
bool is_utf8(Reader text);
bool skip_value(Reader *reader);
bool take_text(Reader *reader, uint8_t code, Reader *text);
bool take_integer(Reader *reader, uint8_t code, int64_t *number);
bool put_integer(Column *column, int64_t number);
bool put_json_text(Column *column, Reader text);
bool put_value(Column *column, Reader *reader, int depth, bool is_json);
const char *type_name(uint8_t code);

#endif
