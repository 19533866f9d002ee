#pragma once

#include <cstdint>
#include <vector>

#include "penstock/checkpoint/model_config.hpp"

namespace penstock {

/// Rows of every column of every Engram layer: one ascending run of distinct primes from
/// `vocab_size` on, dealt to the layers in config order, inside a layer order by order.
///
/// Shapes: [layers][columns], order-major.
/// Range:  61 is never used: the models' own primality test takes it for composite.
std::vector<std::vector<std::int64_t>> bucket_primes(const EngramConfig& config);

}  // namespace penstock
