// Top-k, top-p and min-p by sums of whole numbers, which have no order: the CPU's sampler and the kernels keep the same tokens and
// draw the same one of them. The rule of both:
// - Logits are taken at the row's temperature, in float32. Larger ones come first, equal ones in the order of their tokens.
// - A token's mass is e^(logit - largest logit) in units of 2^-40, rounded down.
// - Top-k keeps the first k tokens.
// - Top-p keeps the first of these, and further ones while the mass before them is below p of the mass of these.
// - Min-p keeps those of these whose logit is at least the largest one plus the logarithm of min-p.
// - The draw is the first kept token in the order of tokens up to which more mass is kept than `uniform` of all kept mass.

#pragma once

#include "exponential.cuh"

// True for rows that draw from a part of their distribution. A row without a whole number of tokens to keep keeps them all.
EXACT bool truncates(int32_t greedy, int32_t top_k, float top_p, float log_min_p, int64_t vocabulary) {
  return !greedy && ((top_k > 0 && top_k < vocabulary) || top_p < 1.0f || log_min_p > -INFINITY);
}

constexpr float MASS_UNITS = 1099511627776.0f;  // of the largest logit's token
// e^this is less than a unit.
constexpr float NO_MASS = -28.0f;

// The mass of a token, of e^(logit - largest logit).
EXACT uint64_t whole_mass(float exponential) {
  return static_cast<uint64_t>(exponential * MASS_UNITS);
}

// The part of a mass, rounded down.
EXACT uint64_t part_of(float share, uint64_t mass) {
  return share > 0 ? static_cast<uint64_t>(static_cast<double>(share) * static_cast<double>(mass)) : 0;
}

// Mass that is below that of the tokens which top-p keeps: the first token is kept in any case.
EXACT uint64_t enough_mass(float top_p, uint64_t mass) {
  const uint64_t part = part_of(top_p, mass);
  return part > 0 ? part : 1;
}

// The drawn token is the first up to which the mass exceeds this.
EXACT uint64_t drawn_mass(float uniform, uint64_t kept) {
  const uint64_t part = part_of(uniform, kept);
  return part < kept ? part : kept - 1;
}

// A number that is larger where the logit is, and equal where it is. No logit has the number 0.
EXACT uint32_t place_of(float logit) {
  const uint32_t bits = static_cast<uint32_t>(as_bits(logit + 0.0f));  // -0 and 0 are equal
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The logit with this number.
EXACT float logit_of(uint32_t place) {
  return as_float(static_cast<int>(place >> 31 ? place & 0x7fffffffu : ~place));
}
