#include "store.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "guarded.h"

extern "C" {

struct nestor_store {
  const char* host;
  uint16_t port;
  bool serve;          // this process is also the server
  int listener;        // the server's socket, bound to its port; -1 for one that hears all networks
  const char* prefix;  // prefix of all keys
  int64_t timeout_ms;  // applies to connecting and to every call
};

int nestor_store_connect(const nestor_store* at, Store** store, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    // c10d logs a warning with a backtrace for every closed connection; failures that matter are errors anyway.
    if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 3 /* fatal */;
    c10d::TCPStoreOptions options;
    options.port = at->port;
    options.isServer = at->serve;
    options.waitWorkers = false;
    if (at->listener >= 0) options.masterListenFd = at->listener;
    options.timeout = std::chrono::milliseconds(at->timeout_ms);
    auto tcp = c10::make_intrusive<c10d::TCPStore>(at->host, options);
    *store = new Store{c10::make_intrusive<c10d::PrefixStore>(at->prefix, tcp)};
  });
}

int nestor_store_set(Store* store, const char* key, const uint8_t* value, size_t size, char* message,
                     size_t message_size) {
  return guarded(message, message_size, [&] { store->store->set(key, std::vector<uint8_t>(value, value + size)); });
}

// Copies at most `capacity` bytes of a value; its whole size is -1 where there is no such key.
int nestor_store_get(Store* store, const char* key, uint8_t* value, size_t capacity, int64_t* size, char* message,
                     size_t message_size) {
  return guarded(message, message_size, [&] {
    *size = -1;
    if (!store->store->check({key})) return;
    const auto bytes = store->store->get(key);
    std::memcpy(value, bytes.data(), std::min(capacity, bytes.size()));
    *size = static_cast<int64_t>(bytes.size());
  });
}

void nestor_store_close(Store* store) {
  delete store;
}

// Ends the process at once and without cleaning up, because other threads may hang in a library.
[[noreturn]] void nestor_exit_now(int code) {
  _exit(code);
}
}
