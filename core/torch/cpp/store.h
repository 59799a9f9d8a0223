// A key-value store over TCP, where ranks meet and leave word.

#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

struct Store {
  c10::intrusive_ptr<c10d::Store> store;
};
