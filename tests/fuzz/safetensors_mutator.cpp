// Three of four mutations change the header or the data behind it and write the length that the header then
// has; libFuzzer's own ones hardly ever get past a header length that is wrong.
#include <cstdint>
#include <cstring>
#include <string>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t limit);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t limit, unsigned seed) {
    constexpr size_t prefix = 8;
    uint64_t length = 0;
    if (seed % 4 == 0 || size < prefix || limit < 2 * prefix) return LLVMFuzzerMutate(data, size, limit);
    std::memcpy(&length, data, prefix);
    if (length > size - prefix) length = size - prefix;
    std::string header(reinterpret_cast<char*>(data) + prefix, length);
    std::string rest(reinterpret_cast<char*>(data) + prefix + length, size - prefix - length);
    std::string& part = seed % 4 == 1 ? rest : header;
    const size_t old = part.size(), room = limit - prefix - (header.size() + rest.size() - old);
    part.resize(room);
    part.resize(room == 0 ? 0 : LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(part.data()), old, room));
    length = header.size();
    std::memcpy(data, &length, prefix);
    std::memcpy(data + prefix, header.data(), header.size());
    std::memcpy(data + prefix + header.size(), rest.data(), rest.size());
    return prefix + header.size() + rest.size();
}
