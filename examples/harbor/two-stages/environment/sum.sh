#!/bin/bash
total=0
while read -r number; do
    total=$number
done < "$DATA"
echo "$GREETING: $total"
