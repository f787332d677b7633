#!/bin/bash
wc -w < text.txt > count.txt
tr -cs 'A-Za-z' '\n' < text.txt | tr 'A-Z' 'a-z' | grep . | sort | uniq -c | sort -k1,1nr -k2 | head -3 |
    sed 's/^ *[0-9]* //' > frequent.txt
