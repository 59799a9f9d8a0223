/* nestor_helpers.h: short helpers for plugins in C99. They are not part of the border, and a plugin may do without them. */
#ifndef NESTOR_HELPERS_H
#define NESTOR_HELPERS_H

#include "nestor_plugin.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Puts a text that ends with a null byte; returns NESTOR_OK. */
static inline int32_t nestor_put(nestor_sink *sink, uint32_t field, const char *text) {
    nestor_str out;
    out.data = (const uint8_t *)text;
    out.len = strlen(text);
    sink->put(sink->context, field, out);
    return NESTOR_OK;
}

/* Puts a formatted text, cut after 1023 bytes; returns NESTOR_OK. */
static inline int32_t nestor_putf(nestor_sink *sink, uint32_t field, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return nestor_put(sink, field, text);
}

/* 1 if a text of the host equals another. */
static inline int nestor_is(nestor_str text, const char *other) {
    return text.len == strlen(other) && (text.len == 0 || memcmp(text.data, other, text.len) == 0);
}

/* Puts the message of an error and returns its code. */
static inline int32_t nestor_fail(nestor_sink *sink, int32_t code, const char *message) {
    nestor_put(sink, NESTOR_ERROR, message);
    return code;
}

#ifdef NESTOR_IMAGE /* since border 1.3 */
/* Puts an image: 3 bytes of each pixel (red, green, blue), row by row from the top, each row from the left. Returns NESTOR_OK,
 * or NESTOR_FAILED where there is no memory for a copy. */
static inline int32_t nestor_put_image(nestor_sink *sink, uint32_t width, uint32_t height, const uint8_t *rgb) {
    size_t length = (size_t)3 * width * height;
    uint8_t *bytes = (uint8_t *)malloc(8 + length);
    nestor_str out;
    int i;
    if (!bytes) return nestor_fail(sink, NESTOR_FAILED, "out of memory for an image");
    for (i = 0; i < 4; i++) {
        bytes[i] = (uint8_t)(width >> (8 * i));
        bytes[4 + i] = (uint8_t)(height >> (8 * i));
    }
    memcpy(bytes + 8, rgb, length);
    out.data = bytes;
    out.len = 8 + length;
    sink->put(sink->context, NESTOR_IMAGE, out);
    free(bytes);
    return NESTOR_OK;
}
#endif

/* Refuses every config but an empty object, for a component without keys. */
static inline int32_t nestor_no_config(nestor_str config, nestor_sink *sink) {
    char braces[3] = {0};
    size_t i, found = 0;
    for (i = 0; i < config.len; i++) {
        if (!strchr(" \t\r\n", config.data[i]) || config.data[i] == 0) {
            braces[found] = (char)config.data[i];
            if (++found > 2) break;
        }
    }
    if (found == 2 && braces[0] == '{' && braces[1] == '}') return NESTOR_OK;
    return nestor_fail(sink, NESTOR_INPUT, "config must be {}: this component takes no keys");
}

/* The schema of a config without keys. */
#define NESTOR_NO_KEYS "{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}"

/* A literal as a nestor_str. */
#define NESTOR_TEXT(literal) {(const uint8_t *)(literal), sizeof(literal) - 1}

/* Describes and exports a plugin of one component. functions is a table, get_extension a function or 0. */
#define NESTOR_PLUGIN_OF_ONE(kind, id, doc, schema, functions, get_extension)                                       \
    static const nestor_component nestor_one = {kind,                NESTOR_TEXT(id), NESTOR_TEXT(doc),             \
                                                NESTOR_TEXT(schema), &functions,      get_extension};              \
    const nestor_plugin *nestor_plugin_entry(void) {                                                               \
        static const nestor_plugin plugin = {NESTOR_HEAD, 1, &nestor_one};                                         \
        return &plugin;                                                                                            \
    }

#endif
