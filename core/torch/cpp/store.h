// A key-value store over TCP, through which ranks find each other and exchange messages.

#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

struct Store {
  c10::intrusive_ptr<c10d::Store> store;
};
