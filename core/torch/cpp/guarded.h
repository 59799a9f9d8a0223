// The return value of every function of the shim: 0, or 1 after writing a message of at most `message_size` bytes.

#pragma once

#include <c10/util/Exception.h>

#include <cstring>
#include <exception>

template <typename F>
int guarded(char* message, size_t message_size, F&& body) {
  try {
    body();
    return 0;
  } catch (const c10::Error& e) {
    std::strncpy(message, e.what_without_backtrace(), message_size - 1);
  } catch (const std::exception& e) {
    std::strncpy(message, e.what(), message_size - 1);
  } catch (...) {
    std::strncpy(message, "unknown C++ exception", message_size - 1);
  }
  message[message_size - 1] = '\0';
  return 1;
}
